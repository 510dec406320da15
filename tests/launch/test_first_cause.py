"""The first cause among several failures, from reports as torchrun and the ranks write them."""

import json
import os
from pathlib import Path

import pytest

from rankscope.conf import PassDir
from rankscope.launch.failure import Failure, failure_of, main_stack
from rankscope.launch.torchrun import Ended

ENTRY = """[{number}]:
  time      : 2026-01-02_12:00:{second:02d}
  host      : node
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : see elsewhere
"""


def failed(folder: Path, exits: dict[int, tuple[int, int]], errors: dict[int, str]) -> Failure:
    """Return the first cause when ranks end with `exits` (second, exit status), having raised `errors`."""
    pass_dir = PassDir(folder / "plain")
    pass_dir.torchrun.mkdir(parents=True)
    entries = [
        ENTRY.format(number=number, second=second, rank=rank, code=code, pid=100 + rank)
        for number, (rank, (second, code)) in enumerate(exits.items())
    ]
    pass_dir.agent_log.write_text("noise\n" + "".join(entries))
    for rank, message in errors.items():
        path = pass_dir.torchrun / "id_x" / "attempt_0" / str(rank) / "error.json"
        path.parent.mkdir(parents=True)
        path.write_text(
            json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": "trace", "timestamp": "1"}}})
        )
        os.utime(path, (exits[rank][0], exits[rank][0]))
    failure = failure_of(pass_dir, Ended(returncode=1, cut=None, limit_s=None, progress={}), len(exits), 0.0)
    assert failure is not None
    return failure


CLOSED = "RuntimeError: [pair.cc:555] Connection closed by peer [127.0.0.1]:1"
NCCL = "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, remote process exited"

CASES = [
    ("the earliest of two", {0: (2, 1), 1: (1, 1)}, {0: "ValueError: late", 1: "KeyError: first"}, (1, "raise")),
    (
        "a lost partner is a consequence",
        {0: (1, 1), 1: (2, 1)},
        {0: CLOSED, 1: "ValueError: slow to tell"},
        (1, "raise"),
    ),
    ("a kill before the survivors' errors", {0: (1, 1), 1: (1, -9)}, {0: CLOSED}, (1, "signal")),
    ("NCCL's errors are consequences too", {0: (1, 1), 1: (3, 7)}, {0: NCCL}, (1, "exit")),
    ("an abort after a lost partner", {0: (1, -6), 1: (2, -11)}, {}, (1, "signal")),
    ("ended by torchrun", {0: (1, -15), 1: (2, 9)}, {}, (1, "exit")),
    ("ended by torchrun, having saved", {0: (1, 143), 1: (1, 9)}, {}, (1, "exit")),
    ("only lost partners", {0: (2, 1), 1: (1, 1)}, {0: CLOSED, 1: CLOSED}, (1, "raise")),
    ("CUDA", {0: (1, 1)}, {0: "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"}, (0, "oom")),
    ("disk", {0: (1, 1)}, {0: "OSError: [Errno 28] No space left on device"}, (0, "disk_full")),
]


@pytest.mark.parametrize(("name", "exits", "errors", "expected"), CASES, ids=lambda value: str(value)[:40])
def test_first_cause(
    name: str, exits: dict[int, tuple[int, int]], errors: dict[int, str], expected: tuple[int, str], tmp_path: Path
) -> None:
    failure = failed(tmp_path, exits, errors)
    assert (failure.rank, failure.kind) == expected


def test_torchrun_that_says_nothing_of_ranks(tmp_path: Path) -> None:
    failure = failed(tmp_path, {}, {})
    assert (failure.rank, failure.kind) == (None, "launcher")
    assert "noise" in failure.text()


STACK = """Thread 0x00007f (most recent call first):
  File "/lib/threading.py", line 331 in wait

Current thread 0x00008f (most recent call first):
  File "/app/faults.py", line 102 in _hang
  File "/app/worker.py", line 121 in _loop
  File "<frozen runpy>", line 88 in _run_code
"""


def test_the_main_threads_frames_come_innermost_first() -> None:
    assert main_stack(STACK) == [
        'File "/app/faults.py", line 102 in _hang',
        'File "/app/worker.py", line 121 in _loop',
    ]
    assert main_stack("") == []
