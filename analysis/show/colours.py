"""One colour for each part of a step, the same in every figure and page. They suit colour-blind readers."""

# Okabe and Ito's palette.
COLOURS = {
    "compute": "#0072B2",
    "exposed_transfer": "#D55E00",
    "exposed_wait": "#E69F00",
    "copy": "#CC79A7",
    "data_stall": "#009E73",
    "host_gap": "#999999",
    "communication": "#8C3D00",  # wait and transfer cannot be told apart
    "hidden_transfer": "#EFB891",
    "hidden_wait": "#F7DCA8",
    "compute_inflation": "#0072B2",
    "smaller_batch": "#56B4E9",
    "rest": "#F0E442",
}
