"""Rules about complete steps: some take far longer than the usual one, or the traced ones longer than the plain one."""

import msgspec

from rankscope.analysis.core.limits import Limits
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.explain.rule import Advice, Claim, Rule
from rankscope.analysis.job.cpu_use import CpuUse
from rankscope.analysis.job.slow_steps import SlowSteps

_STARVED = 0.5  # share of the wanted CPU time
BUSY_SLOW_STEPS = 0.5  # share of what slow steps lose from which waiting for a core is their reason

_TRACED = "the breakdown is that of the traced step, which is longer than the plain one"


def _profiler_distorts(facts: Facts, limits: Limits) -> Claim | None:
    if facts.overhead is None or facts.overhead <= limits.distorts or facts.overhead_at_least <= 1:
        return None
    variant = ("light_too" if facts.light_tried else None) if facts.gpu else "cpu"
    return Claim(gain_ns=0.0, evidence={"overhead": facts.overhead, "profiler": facts.profiler}, variant=variant)


DISTORTS = Rule(
    id="profiler_distorts",
    says="the traced step does not represent the plain step",
    seen_in="trust",
    based_on="profiler overhead",
    check=_profiler_distorts,
    advice=Advice(
        f"{_TRACED}: record device activities only, or use Nsight Systems",
        ("profile=light",),
    ),
    variants={
        "light_too": Advice(
            f"{_TRACED}, and a step with device activities only is longer too: use Nsight Systems",
            ("passes=[plain,nsys]",),
        ),
        "cpu": Advice(f"{_TRACED}: its operators are short, and recording each takes time"),
    },
)


def _slow_steps(facts: Facts, limits: Limits) -> Claim | None:
    slow = facts.slow
    if slow is None or slow.lost_ms < limits.reported * slow.mean_ms:
        return None
    count = len(slow.steps)
    every = f"every {slow.period} steps" if slow.period else f"{count} step{'s' if count > 1 else ''}"
    evidence = {**msgspec.to_builtins(slow), "every": every}
    if not facts.gpu and facts.cpu is not None and _shares_cores(slow, facts.cpu, limits):
        evidence["shared_cores"] = True
    take = "takes" if count == 1 and not slow.period else "take"
    place = f"{every} {take} {slow.slow_ms:.0f} ms instead of {slow.usual_ms:.0f}, in {slow.place}"
    place += f" ({slow.where})" if slow.where else ""
    if (slow.core_wait_share or 0.0) >= BUSY_SLOW_STEPS:
        place += f"; {slow.core_wait_share:.0%} of that is waiting for a core, which other work uses"
    return Claim(gain_ns=slow.lost_ms * 1e6, ranks=slow.ranks, evidence=evidence, place=place, step_ms=slow.mean_ms)


def _shares_cores(slow: SlowSteps, cpu: CpuUse, limits: Limits) -> bool:
    """Return whether other work on the cores may be all there is to slow steps on a CPU.

    Either nobody is at fault (gloo's threads share the cores too), or a rank that got less than half of the CPU time it
    wanted had single slow steps, with no place in the user's code and no period.
    """
    nobody = slow.place == "backward" and not slow.waiting and cpu.got[cpu.least] < limits.cpu_got
    starved = min((cpu.got[rank] for rank in slow.ranks if rank in cpu.got), default=1.0) < _STARVED
    return nobody or (starved and slow.period is None and slow.where is None)


SLOW_STEPS = Rule(
    id="slow_steps",
    says="some steps take far longer than the usual one",
    seen_in="steps",
    based_on="every unprofiled step of every rank; stacks of the main thread while such a step lasts",
    check=_slow_steps,
    advice=Advice("some steps take far longer than the usual one; make the work rarer, shorter or asynchronous"),
    unprofiled=True,
    beyond_usual=True,
)
