"""All ranks of a step on one clock: picture, page, Perfetto trace."""
