"""Which windows a start records, and what each of their steps is for: settings in, one `Plan` per window out."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from rankscope.conf.contract import COUNTED, TORCH_PASSES, PassName, Phase
from rankscope.conf.files import read_json
from rankscope.conf.run_dir import RunDir
from rankscope.conf.schema import RunConfig
from rankscope.conf.sections import ProfileConfig

_DETAILED = 2  # steps: none of its times counts, and torch sums up its events in the user's process
_DETAILS = ("record_shapes", "profile_memory", "with_flops")
# Steps that are recorded before those that count. Before a window opens, the device finishes all work. So a host that
# leads begins anew in the first step, which is unlike the others. The analysis leaves it out if there is another one.
LEAD_IN = 1
_SETTLE = 2  # steps between two windows of one process that belong to neither


@dataclass(kw_only=True)
class Plan:
    """One window: the folder of its pass, its kind, and the phase of each of its steps."""

    name: str
    kind: PassName
    phases: list[Phase]
    profile: ProfileConfig  # the schedule and options of its profiler

    @property
    def counted(self) -> int:
        return sum(phase in COUNTED for phase in self.phases)


def plans(config: RunConfig, run_dir: RunDir, names: Sequence[str], total: int | None = None) -> list[Plan]:
    """Return the windows of one process in order.

    Only the first window needs the long warm-up of a new process. `total` is how many steps the job is known to make
    in all: the windows are then made to fit.
    """
    found = []
    for place, name in enumerate(names):
        kind = run_dir.for_pass(name).kind
        schedule = _schedule(config, kind, first=place == 0, total=total)
        led = replace(schedule, active=schedule.active + LEAD_IN)
        # Windows that follow each other at once look like one window. A job that is known to be short has a spare step.
        apart = schedule.repeat == 1 or schedule.wait + schedule.warmup > 0
        leads = kind in ("torch", "light") and apart and (total is None or led.steps < total)
        profile = _profile(config, kind, led if leads else schedule)
        found.append(Plan(name=name, kind=kind, phases=_phases(config, kind, profile, place == 0), profile=profile))
    return found


def known_steps(run_dir: RunDir) -> int | None:
    """Return how many steps all ranks make at least, if an earlier start has seen the end of one."""
    known: list[int] = []
    for rank_dir in run_dir.for_pass("plain").ranks():
        try:
            found = read_json(rank_dir.info)["job_steps"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        known += [found] if isinstance(found, int) else []
    return min(known, default=None)


def _phases(config: RunConfig, kind: PassName, profile: ProfileConfig, first: bool) -> list[Phase]:
    if kind in ("plain", "timed"):
        warmup = config.warmup_steps if first else _SETTLE
        measured = config.steps if kind == "plain" else config.timed_steps
        return [*_repeat("warmup", warmup), *_repeat("measured", measured)]
    cycle = [*_repeat("wait", profile.wait), *_repeat("warmup", profile.warmup), *_repeat("active", profile.active)]
    return cycle * (profile.repeat if kind in TORCH_PASSES else 1)  # nsys captures one window only


def _schedule(config: RunConfig, kind: PassName, *, first: bool, total: int | None) -> ProfileConfig:
    """Return in which steps of a window the profiler waits, warms up and records."""
    asked = config.profile
    wait, warmup = (asked.wait, asked.warmup) if first else (0, max(1, asked.warmup))
    found = ProfileConfig(wait=wait, warmup=warmup, active=asked.active, repeat=asked.repeat)
    if total is not None and found.steps > total:
        active = max(1, min(asked.active, total // 2))
        warmup = min(warmup, max(0, total - active - 1))
        found = ProfileConfig(wait=max(0, total - active - warmup - 1), warmup=warmup, active=active)
    return replace(found, active=min(found.active, _DETAILED)) if kind == "detail" else found


def _profile(config: RunConfig, kind: PassName, schedule: ProfileConfig) -> ProfileConfig:
    """Return what the profiler of a window records, and when.

    The torch window records times only, because shapes, memory and FLOPs cost as much again; `detail` records those.
    Python stacks are in both if they are asked for: findings name the user's function from the torch window.
    Without a detail window the torch window records what `profile` asks for.
    """
    asked = config.profile
    if kind == "light":
        return replace(schedule, device_only=True)
    options = {name: True for name in _DETAILS}
    if kind == "detail":
        return replace(schedule, with_stack=asked.with_stack, modules=asked.modules, **options)
    if kind == "torch" and "detail" in config.passes:
        return replace(schedule, device_only=asked.device_only, with_stack=asked.with_stack)
    options = {name: getattr(asked, name) for name in (*_DETAILS, "with_stack", "device_only", "modules")}
    return replace(schedule, **options)


def _repeat(phase: Phase, count: int) -> list[Phase]:
    return [phase] * count
