"""Which windows a start records, and what each of their steps is for: settings in, one `Plan` per window out."""

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.conf.contract import COUNTED, TORCH_PASSES, PassName, Phase
from rankscope.conf.files import read_json
from rankscope.conf.run_dir import RunDir
from rankscope.conf.schema import RunConfig
from rankscope.conf.sections import ProfileConfig

_DETAILED = 2  # steps: none of its times counts, and torch sums up its events in the user's process
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
        led = _with_lead_in(schedule) if kind in ("torch", "light") else schedule
        leads = led != schedule and (total is None or _steps_of(led) <= total)
        schedule = led if leads else schedule
        profile = _profile(config, kind, schedule, alone="detail" not in config.passes)
        phases = _phases(config, kind, profile, first=place == 0, leads=leads)
        found.append(Plan(name=name, kind=kind, phases=phases, profile=profile))
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


def _phases(config: RunConfig, kind: PassName, profile: ProfileConfig, *, first: bool, leads: bool) -> list[Phase]:
    if kind in ("plain", "timed"):
        warmup = config.warmup_steps if first else _SETTLE
        measured = config.steps if kind == "plain" else config.timed_steps
        return [*_repeat("warmup", warmup), *_repeat("measured", measured)]
    warmup, active = profile.warmup + leads, profile.active - leads
    cycle = [*_repeat("wait", profile.wait), *_repeat("warmup", warmup), *_repeat("active", active)]
    return cycle * (profile.repeat if kind in TORCH_PASSES else 1)  # nsys captures one window only


def _with_lead_in(schedule: dict[str, int]) -> dict[str, int]:
    """Record one more step, if possible instead of a step to wait or of warm-up.

    Before a window opens the device finishes all work. So in its first step a host that leads has to begin anew, and
    this step is unlike the others: the analysis leaves it out.
    """
    wait, warmup = schedule["wait"], schedule["warmup"]
    spared = {"wait": wait - 1} if wait else {"warmup": warmup - 1} if warmup > 1 else {}
    return schedule | spared | {"active": schedule["active"] + 1}


def _schedule(config: RunConfig, kind: PassName, *, first: bool, total: int | None) -> dict[str, int]:
    """Return which steps of a window the profiler waits for, warms up in, and records."""
    asked = config.profile
    schedule = {name: getattr(asked, name) for name in ("wait", "warmup", "active", "repeat")}
    if not first:
        schedule |= {"wait": 0, "warmup": max(1, asked.warmup)}
    if total is not None and _steps_of(schedule) > total:
        active = max(1, min(schedule["active"], total // 2))
        warmup = min(schedule["warmup"], max(0, total - active - 1))
        schedule = {"wait": max(0, total - active - warmup - 1), "warmup": warmup, "active": active, "repeat": 1}
    if kind == "detail":
        schedule["active"] = min(schedule["active"], _DETAILED)
    return schedule


def _profile(config: RunConfig, kind: PassName, schedule: dict[str, int], *, alone: bool) -> ProfileConfig:
    """Return what the profiler of a window records.

    The torch window records times only, because shapes, memory and FLOPs cost as much again; `detail` records those.
    Python stacks are in both if they are asked for: findings name the user's function from the torch window.
    Without a detail window the torch window records what `profile` asks for.
    """
    asked = config.profile
    if kind == "light":
        return ProfileConfig(device_only=True, **schedule)
    if kind == "detail":
        options = {name: True for name in ("record_shapes", "profile_memory", "with_flops")}
        return ProfileConfig(with_stack=asked.with_stack, modules=asked.modules, **options, **schedule)
    if kind == "torch" and not alone:
        return ProfileConfig(device_only=asked.device_only, with_stack=asked.with_stack, **schedule)
    options = {name: getattr(asked, name) for name in ("record_shapes", "profile_memory", "with_stack", "with_flops")}
    return ProfileConfig(device_only=asked.device_only, modules=asked.modules, **options, **schedule)


def _steps_of(schedule: dict[str, int]) -> int:
    return (schedule["wait"] + schedule["warmup"] + schedule["active"]) * schedule["repeat"]


def _repeat(phase: Phase, count: int) -> list[Phase]:
    return [phase] * count
