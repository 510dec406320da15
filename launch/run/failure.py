"""Names the root cause of a failed pass: an ended pass in, one `Failure` out.

When one rank fails, the others fail too, because a collective lost its partner or because torchrun ends them. The
root cause is the earliest failure that is not such a consequence. Sources: torchrun's report (exit status or signal of
each rank), error.json and rank.json of each rank, and the Python stacks of a rank that hangs.
"""

import json
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from rankscope.conf import PassDir
from rankscope.conf.contract import TORCH_PASSES, signal_status
from rankscope.conf.files import text_of
from rankscope.launch.run.hang import why
from rankscope.launch.run.last_words import LINES, crash, first_line, last_lines, last_words
from rankscope.launch.run.rank_files import error_of, info_of, log_of, said_by, stream
from rankscope.launch.run.stuck import furthest_behind, of_script, without_steps
from rankscope.launch.run.torchrun import Ended
from rankscope.launch.system.rank_progress import RankProgress

Kind = Literal[
    "raise", "exit", "signal", "oom", "disk_full", "timeout", "stall", "missing_file", "interrupted", "launcher",
    "missing_node", "lost_node", "collect_failed", "cancelled", "node_fail", "time_limit", "slurm",
    "nsys_failed", "nsys_report_missing", "nsys_report_unfinished", "nsys_export_failed", "nsys_no_steps",
]  # fmt: skip

_REPORT = re.compile(
    r"\[\d+\]:\s+time\s+: (?P<time>\S+)\s+host\s+: .*?\s+rank\s+: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)"
    r"\s+exitcode\s+: (?P<code>-?\d+)"
)
_OOM = re.compile(r"OutOfMemoryError|out of memory|MemoryError|can't allocate memory|Cannot allocate memory", re.I)
_DISK = re.compile(r"No space left on device|Errno 28\b|File too large|Errno 27\b|Disk quota exceeded")
_LOST_PARTNER = re.compile(
    r"closed by peer|reset by peer|Broken pipe|Dist(Backend|Network|Store)Error|ncclRemoteError|ncclSystemError"
    r"|timed out|timeout|Connection refused|ProcessGroup|TCPStore|gloo|Rendezvous\w+Error",
    re.I,
)
_ENDED_BY_OTHERS = (-signal.SIGTERM, signal_status(signal.SIGTERM))  # exit codes of ranks that torchrun ends
_RAISED = re.compile(r"(?m)^(?:\w+\.)*(\w+(?:Error|Exception): .+)$")
_FULL_BYTES = 2**20
_TRACE_HEAD = 2  # of the lines of a traceback that are shown: its first ones
_OURS = "RecordingError: "  # says what the user can do; where in rankscope it was raised is of no use


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The root cause, as written to run.json; `rank` is None if no single rank caused it."""

    pass_name: str | None = msgspec.field(name="pass", default=None)
    rank: int | None = None
    kind: Kind
    message: str
    traceback: str | None = None
    log: str | None = None

    def text(self) -> str:
        """Return the text for the user: the cause, the end of the traceback, and the path of the log."""
        where = [f"pass {self.pass_name}"] if self.pass_name else []
        where += [f"rank {self.rank}"] if self.rank is not None else []
        lines = [f"rankscope: {', '.join(where)}{': ' if where else ''}{self.message}"]
        trace = (self.traceback or "").rstrip().splitlines()
        if len(trace) > LINES:  # the call in the script, and the end
            trace = [*trace[:_TRACE_HEAD], "  ...", *trace[_TRACE_HEAD - LINES :]]
        lines += [f"    {line}" for line in trace]
        return "\n".join([*lines, f"  log: {self.log}"] if self.log else lines)


class _Exit(msgspec.Struct, frozen=True, kw_only=True):
    """One rank in torchrun's report, with the error that the rank itself wrote."""

    time: str
    rank: int
    local_rank: int
    code: int
    error: str | None = None
    traceback: str | None = None
    written: float = 0.0  # time of error.json (Unix seconds)
    words: str | None = None  # last words of the C library or C++ before it aborted the rank

    @property
    def order(self) -> tuple[int, str, bool, float, int]:
        """Sort key that puts the root cause first; an abort without a message comes before a lost partner."""
        said = self.error or self.words
        if said is not None:
            tier = 2 if _LOST_PARTNER.search(said) else 0
        else:
            tier = 1 if self.code == -signal.SIGABRT else 2 if self.code in _ENDED_BY_OTHERS else 0
        return tier, self.time, self.error is not None, self.written, self.rank


def is_consequence(failure: Failure) -> bool:
    """Whether the failure may be the consequence of one on another node, such as a lost partner."""
    limits = ("lost_node", "stall", "timeout", "time_limit")
    return failure.kind in limits or _LOST_PARTNER.search(failure.message) is not None


def failure_of(pass_dir: PassDir, ended: Ended, ranks: Sequence[int], since: float) -> Failure | None:
    """Return the root cause of an incomplete pass, or None.

    `ranks` are those of this node. `since` is when the pass began (Unix seconds).
    """
    if ended.recorded(ranks):
        return missing_file(pass_dir, ranks, since)
    if ended.cut is not None:
        return _stuck(pass_dir, ended, ranks)
    if ended.returncode != 0:
        return _first_exit(pass_dir, ended)
    return missing_file(pass_dir, ranks, since)


def missing_file(pass_dir: PassDir, ranks: Sequence[int], since: float) -> Failure | None:
    """Return a failure for the first file of a rank that is missing, empty, or older than the pass, or None."""
    for rank in map(pass_dir.rank, ranks):
        needed = [rank.info, rank.steps] + ([rank.trace] if pass_dir.kind in TORCH_PASSES else [])
        for path in needed:
            fault = usable(path, since)
            if fault is not None:
                message = f"wrote no usable {path.name}: {path} {fault}"
                if path == rank.info and not path.exists():
                    message = (
                        f"the process ended itself with status 0 before its steps were recorded, or ran another "
                        f"program in its place (os._exit, os.exec): {path} does not exist"
                    )
                return Failure(
                    pass_name=pass_dir.name, rank=rank.rank, kind="missing_file", message=message, log=log_of(rank)
                )
    return None


def usable(path: Path, since: float) -> str | None:
    """Return what is wrong with a file that must have been written after `since` (Unix seconds), or None."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return "does not exist"
    if found.st_size == 0:
        return "is empty"
    # one second of tolerance, since the clock of a file system may be coarse
    return "is older than the pass" if found.st_mtime < since - 1.0 else None


def _first_exit(pass_dir: PassDir, ended: Ended) -> Failure:
    """Return the root cause according to torchrun's report."""
    said = text_of(pass_dir.agent_log)
    exits = [_reported(pass_dir, match) for match in _REPORT.finditer(said)] or _told_by_ranks(pass_dir)
    if not exits:
        code = ended.returncode
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"failed with exit status {code}"
        raised = _RAISED.findall(said)
        if raised and code > 0:
            how += f": {raised[-1]}"
        last = said.strip().splitlines()[-8:]
        full = _disk_full(pass_dir, said)
        return Failure(
            pass_name=pass_dir.name,
            kind="disk_full" if full else "launcher",
            message=f"no space left on device: {pass_dir.path}" if full else f"torchrun itself {how}",
            traceback="\n".join(last) or None,
            log=str(pass_dir.agent_log),
        )
    first = min(exits, key=lambda item: item.order)
    rank = pass_dir.rank(first.rank)
    stderr = said_by(pass_dir, first.local_rank)
    kind, message = _judge(pass_dir, first, error_of(rank), ended.progress.get(first.rank))
    if pass_dir.name == "nsys" and kind == "exit" and not rank.progress.exists():  # the rank never ran
        kind, message = "nsys_failed", f"nsys failed before it started the rank: {first_line(stderr)}"
    elif pass_dir.name == "nsys" and info_of(rank).get("status") == "ok":
        kind, message = "nsys_failed", f"nsys failed after the rank was done: it {message}"
    return Failure(
        pass_name=pass_dir.name,
        rank=first.rank,
        kind=kind,
        message=message,
        traceback=_traceback(first, stderr) or _own_words(pass_dir, first, kind, stderr),
        log=str(stderr) if stderr is not None else log_of(rank),
    )


def _traceback(first: _Exit, stderr: Path | None) -> str | None:
    if first.traceback is None:
        return crash(stderr) if first.code < 0 else None
    return None if _is_ours(first) else of_script(first.traceback)


def _own_words(pass_dir: PassDir, first: _Exit, kind: Kind, stderr: Path | None) -> str | None:
    """Return what a rank printed last before it ended itself (argparse says there why), or ended without a step."""
    if kind == "exit":
        return last_lines(stderr)
    return last_lines(stream(pass_dir, first.local_rank, "stdout")) if _is_ours(first) else None


def _is_ours(first: _Exit) -> bool:
    return (first.error or "").startswith(_OURS)


def _judge(pass_dir: PassDir, first: _Exit, rank_error: str | None, progress: RankProgress | None) -> tuple[Kind, str]:
    """Return the kind of failure, and one line about it."""
    error = first.error or rank_error
    if error is not None and not error.startswith("SystemExit"):
        line = error.strip().splitlines()[0]
        if _OOM.search(error):
            return "oom", f"out of memory: {line}"
        if _DISK.search(error):
            return "disk_full", f"no space left on device: {line}"
        return "raise", line.removeprefix(_OURS) if line.startswith(_OURS) else f"raised {line}"
    if _disk_full(pass_dir, ""):
        return "disk_full", f"no space left on device ({pass_dir.path} is full); exit status {first.code}"
    if first.code < 0:
        hint = "; if nobody sent it, the kernel ran out of memory (see dmesg)" if first.code == -signal.SIGKILL else ""
        where = f" in phase {progress.phase}" if progress is not None else ""
        said = f": {first.words}" if first.words else ""
        return "signal", f"was ended by {_signal_name(-first.code)}{where}{said}{hint}"
    words = (error or "").removeprefix("SystemExit: ").partition("\n")[0]  # of sys.exit("...")
    return "exit", f"ended itself with exit status {first.code}" + (f": {words}" if words.strip("0123456789") else "")


def _reported(pass_dir: PassDir, match: re.Match[str]) -> _Exit:
    """Return one entry of the report with the rank's own words: error.json, or stderr if the rank was aborted."""
    local_rank, code = int(match["local"]), int(match["code"])
    words = last_words(stream(pass_dir, local_rank)) if code == -signal.SIGABRT else None
    exit_ = _Exit(time=match["time"], rank=int(match["rank"]), local_rank=local_rank, code=code, words=words)
    return _with_error(pass_dir, exit_)


def _told_by_ranks(pass_dir: PassDir) -> list[_Exit]:
    """Return the ranks that wrote an error of their own; torchrun can fail while it collects the ranks' reports."""
    found = []
    for rank in pass_dir.ranks():
        error, local_rank = error_of(rank), info_of(rank).get("local_rank")
        if error is not None and _LOST_PARTNER.search(error) is None:
            local = local_rank if isinstance(local_rank, int) else rank.rank
            written = rank.info.stat().st_mtime
            exit_ = _Exit(time="", rank=rank.rank, local_rank=local, code=1, error=error, written=written)
            found.append(_with_error(pass_dir, exit_))
    return found


def _with_error(pass_dir: PassDir, exit_: _Exit) -> _Exit:
    for path in pass_dir.torchrun.glob(f"*/attempt_*/{exit_.local_rank}/error.json"):
        try:
            said: Any = json.loads(path.read_text())["message"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(said, str):
            said = {"message": said}
        trace = said.get("extraInfo", {}).get("py_callstack")
        return msgspec.structs.replace(
            exit_, error=str(said.get("message")), traceback=trace, written=path.stat().st_mtime
        )
    return exit_


def _stuck(pass_dir: PassDir, ended: Ended, expected: Sequence[int]) -> Failure:
    assert ended.cut is not None  # checked by the caller
    if (unlike := without_steps(ended.progress, expected)) is not None:
        absent, message = unlike
        rank = absent[0] if len(absent) == 1 else None
        return Failure(pass_name=pass_dir.name, rank=rank, kind=ended.cut.kind, message=message)
    found = furthest_behind(pass_dir, ended.progress, expected)
    first = found.ranks[0]
    called = why(pass_dir) if ended.cut.stands_still else None
    said = [ended.cut.message, f"furthest behind: {found.text}", *([called] if called else [])]
    return Failure(
        pass_name=pass_dir.name,
        rank=first if len(found.ranks) == 1 else None,
        kind=ended.cut.kind,
        message="; ".join(said),
        traceback="\n".join(reversed(found.stack)) or None,
        log=str(pass_dir.rank(first).stack if first in ended.progress else pass_dir.agent_log),
    )


def _disk_full(pass_dir: PassDir, said: str) -> bool:
    """Whether the disk is full. A rank often cannot even report that, so the free space counts, too."""
    return _DISK.search(said) is not None or shutil.disk_usage(pass_dir.path).free < _FULL_BYTES


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
