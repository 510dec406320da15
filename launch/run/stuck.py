"""Finds the rank that blocks the others when a pass is stopped, from each rank's progress and Python stacks."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from rankscope.conf import PassDir
from rankscope.conf.files import text_of
from rankscope.launch.system.rank_progress import RankProgress

_INNERMOST = 3
_STARTS_SCRIPT = "harness/script/main_module.py"
_WAITS = re.compile(
    r"harness/group/(control|meetings)|autograd|_engine_run_backward|distributed_c10d|nn/parallel/distributed"
    r"|cuda.*synchronize"
)


class Stuck(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks that block the others, a text on where they are, and the stack of the first one (innermost first)."""

    ranks: list[int]
    text: str
    stack: list[str]


def furthest_behind(pass_dir: PassDir, progress: Mapping[int, RankProgress], expected: Sequence[int]) -> Stuck:
    """Return the ranks that never started, otherwise those furthest behind that do not wait for another rank."""
    absent = [rank for rank in expected if rank not in progress]
    silent = [] if absent else _silent(pass_dir, progress)
    if silent:
        text = ", ".join(f"rank {rank} {_where(progress[rank], [])}, and does not answer" for rank in silent)
        return Stuck(ranks=silent, text=f"{text}: it is stopped, or in a system call that does not return", stack=[])
    behind = min((said.place for said in progress.values()), default=None)
    last = absent or [rank for rank, said in progress.items() if said.place == behind]
    stacks = {rank: main_stack(text_of(pass_dir.rank(rank).stack)) for rank in last}
    ranks = [rank for rank in last if stacks[rank] and not _waits(stacks[rank])] or last
    text = ", ".join(f"rank {rank} {_where(progress.get(rank), stacks[rank])}" for rank in ranks)
    return Stuck(ranks=ranks, text=text, stack=stacks[ranks[0]])


def _silent(pass_dir: PassDir, progress: Mapping[int, RankProgress]) -> list[int]:
    """Return the ranks that wrote no stack although they answer the signal, if every other rank waits for a rank."""
    stacks = {rank: main_stack(text_of(pass_dir.rank(rank).stack)) for rank in progress}
    answered = [stack for stack in stacks.values() if stack]
    if not answered or not all(map(_waits, answered)):
        return []
    return [rank for rank, stack in stacks.items() if not stack and progress[rank].stacks]


def without_steps(progress: Mapping[int, RankProgress], expected: Sequence[int]) -> tuple[list[int], str] | None:
    """Return the ranks that make no step while others make steps alone and wait for them in vain, and a text on it."""
    stepped = [rank for rank, said in progress.items() if said.alone]
    if not stepped or any(said.step for said in progress.values()):
        return None
    absent = [rank for rank in expected if rank not in stepped]
    alone = f"rank {_listed(stepped)} made steps alone"
    text = f"rank {_listed(absent)} made no step while {alone}" if absent else f"{alone}, never at the same time"
    return absent, (
        f"{text}: try steps_from=loader, or call Recorder().step() once a step on every rank; if all ranks step later, "
        "raise launch.stall_timeout_s"
    )


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def main_stack(text: str) -> list[str]:
    """Return the frames of the main thread (innermost first) from the output of faulthandler."""
    threads = [block.splitlines()[1:] for block in re.split(r"(?m)^(?=Thread |Current thread )", text) if block.strip()]
    main = [frames for frames in threads if any("<frozen runpy>" in frame or "runpy.py" in frame for frame in frames)]
    frames = (main or threads or [[]])[-1]
    ours = next((at for at, frame in enumerate(frames) if _STARTS_SCRIPT in frame), len(frames))
    frames = frames[:ours]  # without what called the script
    return [frame.strip() for frame in frames if "runpy" not in frame and frame.strip()]


def of_script(trace: str) -> str:
    """Return a traceback from the script's first frame on, without the frames of rankscope that called it."""
    lines = trace.splitlines()
    ours = [at for at, line in enumerate(lines) if _STARTS_SCRIPT in line]
    after = [at for at, line in enumerate(lines) if ours and at > ours[-1] and line.startswith("  File ")]
    return "\n".join(lines[after[0] :]) if after else trace


def _waits(stack: list[str]) -> bool:
    """Whether a rank waits: in a collective, in a backward pass that ends in a collective, or for the device."""
    return _WAITS.search("\n".join(stack[:_INNERMOST])) is not None


def _where(progress: RankProgress | None, stack: list[str]) -> str:
    if progress is None:
        return "did not start"
    frame = f" at {stack[0]}" if stack else ""
    return f"in {progress.phase}, step {progress.step} of {progress.of}{frame}"
