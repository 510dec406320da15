"""The sentences about a timeline, shared by the figure, the page and the terminal."""

from rankscope.analysis.show.timeline.build import WHOLE_WINDOW, Timeline

TITLES = {
    "compute": "compute",
    "exposed_transfer": "exposed transfer",
    "exposed_wait": "exposed wait",
    "copy": "copy",
    "data_stall": "data stall",
    "host_gap": "host gap",
    "communication": "communication, not split",
}
_EXCESS = {"compute": "computing", "data": "waiting for data", "host": "launching", "copy": "copying"}


def step_name(step: int) -> str:
    return "the whole window" if step == WHOLE_WINDOW else f"step {step}"


def step_sentence(timeline: Timeline, step: int) -> str:
    """Say which rank was late in a step, by how much, and on what it spent the time."""
    mark, name = timeline.marks.get(step), step_name(step).capitalize()
    if timeline.world_size == 1:
        return f"{name}: only one rank, so nothing to wait for."
    if mark is None:
        return f"{name}: there is no collective by which to compare ranks."
    amount = f"{mark.lateness_ns * 1e-6:.2f} ms"
    if not mark.late:
        limit = f"{timeline.threshold_ns * 1e-6:.2f} ms"
        if step not in timeline.judged:
            why = "because the first step of a window shows when profilers started"
            return f"{name}: not judged, {why} (rank {mark.rank}: {amount})."
        return f"{name}: no rank is late. The latest is rank {mark.rank}, by {amount}; the threshold is {limit}."
    extra = [
        f"{ns * 1e-6:+.2f} ms {_EXCESS.get(cause, 'in earlier collectives')}"
        for cause, ns in sorted(mark.excess_ns.items(), key=lambda item: -abs(item[1]))
        if abs(ns) >= 0.05 * mark.lateness_ns
    ]
    why = f" Before that, compared with the others' median, it spent {', '.join(extra)}." if extra else ""
    return f"{name}: rank {mark.rank} reaches a collective {amount} after the others.{why}"


def what_to_see(timeline: Timeline, step: int) -> list[str]:
    """Return the names of the parts that occur in a step, in their fixed order."""
    codes = {int(code) for view in timeline.views for code in view.parts["part"][view.parts["step"] == step]}
    return [name for code, name in enumerate(TITLES) if code in codes]
