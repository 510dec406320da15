"""What a timeline says in words: the same sentences in the figure, the page and the terminal."""

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
    """Return what a step is called."""
    return "the whole window" if step == WHOLE_WINDOW else f"step {step}"


def step_sentence(timeline: Timeline, step: int) -> str:
    """Say whether a rank was late in a step, which, by how much, and what it spent the time on."""
    mark, name = timeline.marks.get(step), step_name(step).capitalize()
    if timeline.world_size == 1:
        return f"{name}: one rank, nothing to wait for."
    if mark is None:
        return f"{name}: no collective to compare ranks by."
    amount = f"{mark.lateness_ns * 1e-6:.2f} ms"
    if not mark.late:
        limit = f"{timeline.threshold_ns * 1e-6:.2f} ms"
        if step not in timeline.judged:
            return (
                f"{name}: not judged (the first of a window shows when profilers started); rank {mark.rank}: {amount}."
            )
        return f"{name}: nobody is late. The latest is rank {mark.rank}, by {amount}; from {limit} on it would count."
    extra = [
        f"{ns * 1e-6:+.2f} ms {_EXCESS.get(cause, 'in earlier collectives')}"
        for cause, ns in sorted(mark.excess_ns.items(), key=lambda item: -abs(item[1]))
        if abs(ns) >= 0.05 * mark.lateness_ns
    ]
    why = f" Before it fell behind it spent {', '.join(extra)} against the others' median." if extra else ""
    return f"{name}: rank {mark.rank} reaches a collective {amount} after the others.{why}"


def what_to_see(timeline: Timeline, step: int) -> list[str]:
    """Return the names of the parts that occur in a step, in their fixed order."""
    codes = {int(code) for view in timeline.views for code in view.parts["part"][view.parts["step"] == step]}
    return [name for code, name in enumerate(TITLES) if code in codes]
