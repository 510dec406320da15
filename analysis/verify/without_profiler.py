"""What is known without a profiler: throughput, which rank is late, slow steps, and what profiling adds to a step.

Comes in: `Recording` with its run folder. Goes out: `Unprofiled` and notices; nulls and a notice without a plain pass.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import FEEDING, POINT_TO_POINT
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.job import late_rank, slow_steps
from rankscope.analysis.job.cpu_use import CpuUse, data_wait_ms
from rankscope.analysis.job.late_rank import JobVerdict
from rankscope.analysis.job.slow_steps import SlowSteps
from rankscope.analysis.job.timed_calls import TimedCalls, by_size, match, read_calls
from rankscope.analysis.job.traced import Traced
from rankscope.analysis.job.variation import of_steps
from rankscope.analysis.job.window import Window
from rankscope.analysis.measure.dimensions import exchanging, names_by_group
from rankscope.analysis.measure.loader import on_cpu
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.measure.stragglers import NO_COLLECTIVE
from rankscope.analysis.read import pass_steps
from rankscope.analysis.read.run_settings import rank_infos
from rankscope.analysis.verify import plain_pass
from rankscope.analysis.verify.overhead import Interval, ratio_interval
from rankscope.conf import ConfigError, RunConfig, RunDir, load_config

PASSES = ("timed", "torch", "light", "nsys")


class Unprofiled(msgspec.Struct, frozen=True, kw_only=True):
    """What is known from the plain pass; times in ms."""

    ranks: list[int] = []  # with a plain pass
    window: Window | None = None  # every plain step of every rank
    throughput: plain_pass.Throughput | None = None
    overhead: dict[str, float | None] = msgspec.field(
        default_factory=lambda: dict.fromkeys(PASSES)
    )  # of each pass: its step / the plain step
    overhead_interval: dict[str, Interval | None] = {}  # of these ratios
    verdict: JobVerdict | None = None  # which rank is late; None: no window can tell
    slow: SlowSteps | None = None  # steps far from the usual one; None: there are none
    calls: list[dict[str, Any]] = []  # the timed collectives by group, kind and size
    extra_ms: float | None = None  # what the analysed pass adds to a step
    loader_cpu: tuple[float, int] | None = None  # see loader.on_cpu
    cpu: CpuUse | None = None  # what the ranks' threads did with the cores
    data_wait_ms: float | None = None  # mean wait for a batch, on the rank that waits longest; None: unknown
    steps_vary_ms: float | None = None  # the interquartile range of plain steps
    on_cpu: bool = False  # whether the ranks computed on CPUs
    script: bool = False  # whether the job is a script of the user's

    @property
    def step_ms(self) -> float | None:
        """The plain step."""
        return None if self.throughput is None else self.throughput.step_ms_p50


def read(recording: Recording) -> tuple[Unprofiled, list[Notice]]:
    """Read the plain pass next to the analysed pass."""
    run_dir = recording.run_dir
    config, notices = _config(recording)
    script = config is not None and config.script is not None
    found = None if run_dir is None else pass_steps.read_pass(run_dir.for_pass("plain"), "measured")
    notices += [] if run_dir is None else _unreadable(run_dir)
    if run_dir is None or found is None:
        text = "no plain pass: throughput and profiler overhead are null, and the verdict holds under the profiler"
        notices.append(Notice(kind="no_plain_pass", level="info", message=text))
        return Unprofiled(script=script), notices
    traced = {
        name: pass_steps.read_pass(run_dir.for_pass(name), "measured" if name == "timed" else "active")
        for name in PASSES
    }
    base = found.step_ns()
    slowed = {name: None if steps is None else steps.step_ns() for name, steps in traced.items()}
    overheads = {name: round(step_ns / base, 4) if base and step_ns else None for name, step_ns in slowed.items()}
    plain_times = plain_pass.step_times(found)
    intervals = {
        name: None if steps is None else ratio_interval(plain_pass.step_times(steps), plain_times)
        for name, steps in traced.items()
    }
    notices += _distortion(recording, overheads, intervals[recording.profiler])
    rate = plain_pass.throughput(found, config)
    if config is not None and rate is not None and rate.mfu is None:
        text = "mfu is null: the dense peak of this device and arithmetic is not known"
        if config.script is not None:
            text = "mfu is null: how many FLOPs the script's model takes is not known"
        notices.append(Notice(kind="unknown_gpu_peak", level="info", message=text))
    plain = pass_steps.read_pass(run_dir.for_pass("plain"), None)
    window = None if plain is None else Window.of(plain)
    cpu = None if window is None else CpuUse.of(window)
    notices += _shared_cores(cpu, recording.options.limits)
    shared = _shared_devices(rank_infos(run_dir))
    notices += shared
    traced_ns = slowed[recording.profiler]
    traced_job = _traced(recording, overheads[recording.profiler])
    verdict, calls, slow = _job(run_dir, window, recording.options.limits, traced_job)
    if verdict is not None:
        verdict = _of_all_ranks(verdict, set(found.ranks), plain_pass.world_size(found, config))
        verdict = _held(verdict, recording, shares_gpu=bool(shared))
    without = Unprofiled(
        ranks=sorted(found.ranks),
        window=window,
        throughput=rate,
        overhead=overheads,
        overhead_interval=intervals,
        verdict=verdict,
        slow=slow,
        calls=[] if calls is None else by_size(calls),
        loader_cpu=on_cpu(found),
        cpu=cpu,
        steps_vary_ms=None if rate is None else of_steps(plain_times),
        data_wait_ms=None if window is None else data_wait_ms(window),
        on_cpu=all(info.get("device") == "cpu" for info in found.info.values()),
        script=script,
        extra_ms=(traced_ns - base) * 1e-6 if base and traced_ns else None,
    )
    return without, notices


_METRICS = 3  # all-gathers a step and rank that may be of metrics; an object needs two


def _held(verdict: JobVerdict, recording: Recording, *, shares_gpu: bool) -> JobVerdict:
    """Return the verdict, or undetermined if the ranks' times say nothing about one another."""
    reason = NO_COLLECTIVE if recording.independent else None
    if verdict.window == "plain" and verdict.rank is not None and _several_groups(recording):
        reason = reason or "ranks wait for each other in several groups, and only timed collectives tell them apart"
    if verdict.window == "plain" and verdict.verdict == "none" and _waits_within_passes(recording):
        reason = reason or "ranks wait for each other within their passes, and only timed collectives show for whom"
    if shares_gpu and verdict.verdict != "none" and verdict.cause != "data":
        reason = reason or "ranks share a GPU, and each is late while another one has it"
    return verdict if reason is None else JobVerdict(verdict="undetermined", window=verdict.window, reason=reason)


def _several_groups(recording: Recording) -> bool:
    """Return whether the traced collectives are of groups with different ranks."""
    calls = recording.calls
    shared = calls["group_size"] != 1
    members = {
        group: frozenset(np.unique(calls["rank"][shared & (calls["group_id"] == group)]).tolist())
        for group in np.unique(calls["group_id"][shared]).tolist()
    }
    return len({ranks for ranks in members.values() if len(ranks) > 1}) > 1


def _waits_within_passes(recording: Recording) -> bool:
    """Return whether ranks of the traced job wait for each other within their passes, for data of the next layer.

    These data are activations, messages, parameters of FSDP and tokens for experts. A few other all-gathers in a step
    are for metrics.
    """
    calls, steps = recording.calls, recording.steps_analysed
    calls = calls.take((calls["group_size"] != 1) & np.isin(calls["step"], steps))
    if not len(calls):
        return False
    activations = np.isin(calls["group_id"], exchanging(names_by_group(recording)))
    gathers = calls.where("kind", lambda word: word == "allgather")
    feeding = calls.where("kind", lambda word: word in FEEDING or word in POINT_TO_POINT) & ~gathers
    feeding |= activations | (gathers & (calls["scope"] >= 0))
    rank_steps = len(recording.ranks) * len(steps)
    return int(feeding.sum()) >= 2 * rank_steps or int((gathers & ~feeding).sum()) > _METRICS * rank_steps


def _traced(recording: Recording, overhead: float | None) -> Traced | None:
    """Return what the trace shows; None if profiling makes its steps longer: its waits are not those of the job."""
    distorted = overhead is None or overhead > recording.options.limits.distorts
    return None if distorted else Traced.of(recording.analysed_steps)


def _job(
    run_dir: RunDir, plain: Window | None, limits: Limits, traced_job: Traced | None
) -> tuple[JobVerdict | None, TimedCalls | None, SlowSteps | None]:
    """Judge the job from its timed window, otherwise from its plain one; slow steps are those of the plain window."""
    timed = pass_steps.read_pass(run_dir.for_pass("timed"), None)
    window, calls = None if timed is None else Window.of(timed), None
    if window is not None and timed is not None:
        found = read_calls(run_dir.for_pass("timed"))
        if set(window.ranks) <= set(found):
            starts = {rank: (timed.numbers[rank], timed.ranks[rank]["start_ns"]) for rank in window.ranks}
            calls = match(found, starts)
    slow = None if plain is None else slow_steps.find(plain, limits, slow_steps.read_stacks(run_dir.for_pass("plain")))
    if window is not None and calls is not None and np.any(calls.step >= 0):
        return late_rank.judge(window, calls, limits, plain, traced_job), calls, slow
    return None if plain is None else late_rank.judge(plain, None, limits), None, slow


def _of_all_ranks(verdict: JobVerdict, ranks: set[int], world_size: int) -> JobVerdict:
    """Return the verdict. That nobody is late is only known if every rank has steps."""
    missing = sorted(set(range(world_size)) - ranks)
    if verdict.verdict != "none" or not missing:
        return verdict
    reason = f"the {verdict.window} pass has no steps of rank {', '.join(map(str, missing))}"
    return msgspec.structs.replace(verdict, verdict="undetermined", reason=reason)


def _unreadable(run_dir: RunDir) -> list[Notice]:
    """Return a notice for each file of the plain and the timed pass that exists and cannot be read."""
    notices = []
    for pass_dir in (run_dir.for_pass("plain"), run_dir.for_pass("timed")):
        steps, calls, stacks = pass_steps.readable(pass_dir), read_calls(pass_dir), slow_steps.read_stacks(pass_dir)
        for rank_dir in pass_dir.ranks():
            files = (
                (rank_dir.steps, pass_steps.has_steps(rank_dir), steps, "its steps do not count"),
                (rank_dir.calls, rank_dir.calls.exists(), calls, "the collectives' times are not used"),
                (rank_dir.slow_steps, rank_dir.slow_steps.exists(), stacks, "the lines of slow steps are missing"),
            )
            for path, exists, read_ranks, consequence in files:
                if exists and rank_dir.rank not in read_ranks:
                    text = f"{path}: cannot be read, or rank.json beside it: {consequence}; record again"
                    notices.append(Notice(kind="file_unreadable", rank=rank_dir.rank, file=path.name, message=text))
    return notices


def _distortion(recording: Recording, overheads: dict[str, float | None], interval: Interval | None) -> list[Notice]:
    """Return what has to be said when the analysed step, or that of the torch pass beside it, is not the plain one."""
    own, full, limit = overheads[recording.profiler], overheads["torch"], recording.options.limits.distorts
    notices = []
    if recording.profiler == "light" and full is not None:
        text = (
            f"the torch pass makes a step {full:.2f} times as long: times are those of the light pass, which records "
            "device activities alone; operators and modules are those of the torch pass"
        )
        notices.append(Notice(kind="light_pass", level="info", message=text, details={"overhead": full}))
    low, high = interval or (own or 1.0, own or 1.0)
    if high < 1:
        text = (
            f"traced steps are shorter than plain ones ({low:.2f} to {high:.2f} times as long), so something else "
            "changed between the two windows: do not compare their times"
        )
        notices.append(Notice(kind="windows_disagree", message=text, details={"interval": [low, high]}))
    if own is not None and own > limit and low > 1:
        text = (
            f"profiling makes a step {own:.2f} times as long: the breakdown is that of the traced step; what "
            "profiling added is taken off from what a fix would bring"
        )
        notices.append(Notice(kind="profiler_distorts", message=text, details={"overhead": own}))
    return notices


def _shared_cores(cpu: CpuUse | None, limits: Limits) -> list[Notice]:
    """Return what has to be said when ranks did not get the CPU time that they wanted."""
    if cpu is None or cpu.got[cpu.least] >= limits.cpu_got:
        return []
    others = f" (rank {cpu.least}; others up to {max(cpu.got.values()):.0%})" if len(cpu.got) > 1 else ""
    text = (
        f"the thread of the steps got {cpu.got[cpu.least]:.0%} of the CPU time it wanted{others}: other threads or "
        "processes use its cores, and times vary with them"
    )
    got = {str(rank): round(share, 4) for rank, share in cpu.got.items()}
    return [Notice(kind="cores_shared", message=text, details={"cpu_got": got})]


_NAMED = 16  # ranks


def _shared_devices(infos: Sequence[dict[str, Any]]) -> list[Notice]:
    """Return what has to be said when ranks use one GPU together."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for info in infos:
        if isinstance(info.get("device_uuid"), str):
            ranks[info["device_uuid"]].append(info["rank"])
    shared = sorted(own for own in ranks.values() if len(own) > 1)
    if not shared:
        return []
    who = ", ".join(map(str, shared[0][:_NAMED]))
    text = (
        f"ranks {who} share one GPU{_more(len(shared) - 1)}: they take turns on it, so their kernels last longer, "
        "collectives do not end together, and who is late changes"
    )
    return [Notice(kind="devices_shared", message=text, details={"ranks": shared})]


def _more(count: int) -> str:
    return f" (and {count} more GPU{'s' if count > 1 else ''} are shared)" if count else ""


def _config(recording: Recording) -> tuple[RunConfig | None, list[Notice]]:
    if recording.run_dir is None:
        return None, []
    try:
        return load_config(recording.run_dir.config), []
    except ConfigError as error:
        text = f"{error}; samples per second and MFU are null"
        notice = Notice(kind="config_unreadable", message=text, file=recording.run_dir.config.name)
        return None, [notice]
