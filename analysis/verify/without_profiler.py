"""What the plain pass adds to an analysis: throughput, what profiling costs, whether the late rank is late without it.

Comes in: an `Analysis` of a run folder. Goes out: `Unprofiled`, and the findings corrected by it; nulls and a notice
where there is no plain pass.
"""

from typing import Any

import msgspec

from rankscope.analysis.core.notices import Notice
from rankscope.analysis.explain import findings
from rankscope.analysis.explain.facts import Finding
from rankscope.analysis.explain.gain_limit import Room
from rankscope.analysis.measure.loader import on_cpu
from rankscope.analysis.read import pass_steps
from rankscope.analysis.result import Analysis
from rankscope.analysis.verify import plain_pass
from rankscope.conf import ConfigError, RunConfig, load_config

PASSES = ("torch", "light", "nsys")


class Unprofiled(msgspec.Struct, frozen=True, kw_only=True):
    """What is known from the plain pass; times in ms."""

    throughput: dict[str, Any] | None = None
    overhead: dict[str, float | None] = msgspec.field(
        default_factory=lambda: dict.fromkeys(PASSES)
    )  # of each pass: its step / the plain step
    confirmed: bool | None = None  # whether the plain pass shows the late rank
    extra_ms: float | None = None  # what the analysed pass adds to a step
    loader_cpu: tuple[float, int] | None = None  # see loader.on_cpu
    script: bool = False  # whether the job is a script of the user's

    @property
    def step_ms(self) -> float | None:
        """The plain step."""
        return None if self.throughput is None else self.throughput["step_ms_p50"]


def read(analysis: Analysis, notices: list[Notice]) -> Unprofiled:
    """Read the plain pass beside what was analysed."""
    run_dir, config = analysis.run_dir, _config(analysis, notices)
    script = config is not None and config.script is not None
    found = None if run_dir is None else pass_steps.read_pass(run_dir.for_pass("plain"), "measured")
    if run_dir is None or found is None or config is None:
        text = "no plain pass: throughput and profiler overhead are null, and the verdict holds under the profiler"
        notices.append(Notice(kind="no_plain_pass", level="info", message=text))
        return Unprofiled(script=script)
    traced = {name: pass_steps.read_pass(run_dir.for_pass(name), "active") for name in PASSES}
    base = found.step_ns()
    slowed = {name: None if steps is None else steps.step_ns() for name, steps in traced.items()}
    overheads = {name: round(step_ns / base, 4) if base and step_ns else None for name, step_ns in slowed.items()}
    notices += _distortion(analysis, overheads)
    rate = plain_pass.throughput(found, config)
    if rate is not None and rate["mfu"] is None:
        text = "mfu is null: the dense peak of this device and arithmetic is not known"
        if config.script is not None:
            text = "mfu is null: how many FLOPs the script's model takes is not known"
        notices.append(Notice(kind="unknown_gpu_peak", level="info", message=text))
    slow = slowed[analysis.profiler]
    return Unprofiled(
        throughput=rate,
        overhead=overheads,
        confirmed=plain_pass.confirm(analysis.verdict, found),
        loader_cpu=on_cpu(found),
        script=script,
        extra_ms=(slow - base) * 1e-6 if base and slow else None,
    )


def findings_of(analysis: Analysis, without: Unprofiled) -> list[Finding]:
    """Return the findings with what profiling added taken off, and one more where it distorts the step."""
    limits = analysis.options.limits
    gpu = all(data.mode == "device" for data in analysis.ranks)
    room = Room.of(analysis.analysed_steps, without.step_ms) if gpu else None
    named = [item.ranks for item in analysis.findings if item.id.startswith("straggler")]
    confirmed = without.confirmed if [analysis.verdict.rank] in named else None  # else it is of another rank
    found = findings.without_profiler(analysis.findings, without.step_ms, without.extra_ms, confirmed, limits, room)
    if not gpu and without.step_ms is not None and not without.confirmed:
        found = findings.unsure(found)
    ranks = [data.rank for data in analysis.ranks]
    if without.loader_cpu is not None:
        found = findings.with_loader_on_cpu(found, *without.loader_cpu, limits)
    lighter = "profiler_distorts" if without.overhead["light"] is None else "profiler_distorts_both"
    advice = lighter if gpu else "profiler_distorts_cpu"
    slowed = findings.distorts(without.overhead[analysis.profiler], analysis.profiler, ranks, limits, advice)
    return _applicable(findings.with_shared_time(found if slowed is None else [*found, slowed]), without.script)


def _applicable(found: list[Finding], script: bool) -> list[Finding]:
    """Keep of the overrides to try those that act on a script, which takes no others."""
    if not script:
        return found
    return [
        msgspec.structs.replace(
            item, overrides=[word for word in item.overrides if word.startswith(("profile", "passes"))]
        )
        for item in found
    ]


def _distortion(analysis: Analysis, overheads: dict[str, float | None]) -> list[Notice]:
    """Return what has to be said when the analysed step, or that of the torch pass beside it, is not the plain one."""
    own, full, limit = overheads[analysis.profiler], overheads["torch"], analysis.options.limits.distorts
    notices = []
    if analysis.profiler == "light" and full is not None:
        text = (
            f"the torch pass makes a step {full:.2f} times as long: times are those of the light pass, which records "
            "device activities alone; operators and modules are those of the torch pass"
        )
        notices.append(Notice(kind="light_pass", level="info", message=text, details={"overhead": full}))
    if own is not None and own > limit:
        text = (
            f"profiling makes a step {own:.2f} times as long: the breakdown is that of the traced step; what "
            "profiling added is taken off from what a fix would bring"
        )
        notices.append(Notice(kind="profiler_distorts", message=text, details={"overhead": own}))
    return notices


def _config(analysis: Analysis, notices: list[Notice]) -> RunConfig | None:
    if analysis.run_dir is None:
        return None
    try:
        return load_config(analysis.run_dir.config)
    except ConfigError as error:
        notices.append(Notice(kind="config_unreadable", message=str(error), file=analysis.run_dir.config.name))
        return None
