"""Adds what the plain pass says to an analysis: throughput, profiler overhead, and whether it confirms the late rank.

Input: a `Recording` with its run folder. Output: `Unprofiled` and notices; without a plain pass, nulls and a notice.
"""

import msgspec

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.measure.loader import on_cpu
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.read import pass_steps
from rankscope.analysis.verify import plain_pass
from rankscope.conf import ConfigError, RunConfig, load_config

PASSES = ("torch", "light", "nsys")


class Unprofiled(msgspec.Struct, frozen=True, kw_only=True):
    """What is known from the plain pass. Times are in ms."""

    ranks: list[int] = []  # those that have a plain pass
    throughput: plain_pass.Throughput | None = None
    # Of each pass: its step / the plain step.
    overhead: dict[str, float | None] = msgspec.field(default_factory=lambda: dict.fromkeys(PASSES))
    confirmed: bool | None = None  # whether the plain pass also shows the late rank
    extra_ms: float | None = None  # how much longer a step is in the analysed pass
    loader_cpu: tuple[float, int] | None = None  # see loader.on_cpu
    script: bool = False  # whether the job is the user's own script

    @property
    def step_ms(self) -> float | None:
        """The median step of the plain pass (ms)."""
        return None if self.throughput is None else self.throughput.step_ms_p50


def read(recording: Recording) -> tuple[Unprofiled, list[Notice]]:
    """Read the plain pass next to the analysed pass."""
    run_dir = recording.run_dir
    config, notices = _config(recording)
    script = config is not None and config.script is not None
    found = None if run_dir is None else pass_steps.read_pass(run_dir.for_pass("plain"), "measured")
    if run_dir is None or found is None or config is None:
        text = "no plain pass: throughput and profiler overhead are null, and the verdict holds only under the profiler"
        notices.append(Notice(kind="no_plain_pass", level="info", message=text))
        return Unprofiled(script=script), notices
    traced = {name: pass_steps.read_pass(run_dir.for_pass(name), "active") for name in PASSES}
    base = found.step_ns()
    slowed = {name: None if steps is None else steps.step_ns() for name, steps in traced.items()}
    overheads = {name: round(step_ns / base, 4) if base and step_ns else None for name, step_ns in slowed.items()}
    notices += _distortion(recording, overheads)
    rate = plain_pass.throughput(found, config)
    if rate is not None and rate.mfu is None:
        text = "mfu is null: the dense peak of this device and arithmetic is unknown"
        if config.script is not None:
            text = "mfu is null: the number of FLOPs of the script's model is unknown"
        notices.append(Notice(kind="unknown_gpu_peak", level="info", message=text))
    slow = slowed[recording.profiler]
    without = Unprofiled(
        ranks=sorted(found.ranks),
        throughput=rate,
        overhead=overheads,
        confirmed=plain_pass.confirm(recording.verdict, found),
        loader_cpu=on_cpu(found),
        script=script,
        extra_ms=(slow - base) * 1e-6 if base and slow else None,
    )
    return without, notices


def _distortion(recording: Recording, overheads: dict[str, float | None]) -> list[Notice]:
    """Return notices for the case that profiling makes the analysed step, or the torch pass's step, much longer."""
    own, full, limit = overheads[recording.profiler], overheads["torch"], recording.options.limits.distorts
    notices = []
    if recording.profiler == "light" and full is not None:
        text = (
            f"the torch pass makes a step {full:.2f} times as long: times are from the light pass, which records only "
            "device activities; operators and modules are from the torch pass"
        )
        notices.append(Notice(kind="light_pass", level="info", message=text, details={"overhead": full}))
    if own is not None and own > limit:
        text = (
            f"profiling makes a step {own:.2f} times as long: the breakdown is that of the traced step; the time that "
            "profiling adds is subtracted from the possible gain of a fix"
        )
        notices.append(Notice(kind="profiler_distorts", message=text, details={"overhead": own}))
    return notices


def _config(recording: Recording) -> tuple[RunConfig | None, list[Notice]]:
    if recording.run_dir is None:
        return None, []
    try:
        return load_config(recording.run_dir.config), []
    except ConfigError as error:
        notice = Notice(kind="config_unreadable", message=str(error), file=recording.run_dir.config.name)
        return None, [notice]
