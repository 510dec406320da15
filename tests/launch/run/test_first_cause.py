"""The first cause among several failures, from reports as torchrun and the ranks write them."""

import json
import os
from pathlib import Path

import pytest

from rankscope.conf import PassDir
from rankscope.launch.run.failure import Failure, failure_of, is_consequence, missing_file
from rankscope.launch.run.stuck import main_stack
from rankscope.launch.run.torchrun import Cut, Ended
from rankscope.launch.system.rank_progress import RankProgress

ENTRY = """[{number}]:
  time      : 2026-01-02_12:00:{second:02d}
  host      : node
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : see elsewhere
"""


def failed(folder: Path, exits: dict[int, tuple[int, int]], errors: dict[int, str], said: str = "noise\n") -> Failure:
    """Return the first cause when ranks end with `exits` (second, exit status), having raised `errors`."""
    pass_dir = PassDir(folder / "plain")
    pass_dir.torchrun.mkdir(parents=True)
    entries = [
        ENTRY.format(number=number, second=second, rank=rank, code=code, pid=100 + rank)
        for number, (rank, (second, code)) in enumerate(exits.items())
    ]
    pass_dir.agent_log.write_text(said + "".join(entries))
    for rank, message in errors.items():
        path = pass_dir.torchrun / "id_x" / "attempt_0" / str(rank) / "error.json"
        path.parent.mkdir(parents=True)
        path.write_text(
            json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": "trace", "timestamp": "1"}}})
        )
        os.utime(path, (exits[rank][0], exits[rank][0]))
    failure = failure_of(pass_dir, Ended(returncode=1, cut=None, progress={}), range(len(exits)), 0.0)
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
    ("an abort before a lost partner", {0: (1, 1), 1: (2, -6)}, {0: CLOSED}, (1, "signal")),
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
    assert "noise" in failure.text() and not is_consequence(failure)


def test_torchrun_that_lost_the_node_it_met_others_on(tmp_path: Path) -> None:
    """Seen when a leading node was killed: the others' torchrun can notice it before their ranks do."""
    raised = (
        "Traceback (most recent call last):\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has"
        " failed. See inner exception for details.\n"
    )
    failure = failed(tmp_path, {}, {}, said=raised)
    assert failure.kind == "launcher" and "RendezvousConnectionError: The connection" in failure.message
    assert is_consequence(failure)


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


HANGS = """Current thread 0x01 (most recent call first):
  File "/app/faults.py", line 102 in _hang
  File "/app/trainer.py", line 5 in step
"""
BACKWARD = """Current thread 0x01 (most recent call first):
  File "/torch/autograd/graph.py", line 865 in _engine_run_backward
  File "/torch/_tensor.py", line 630 in backward
"""

# what each of two ranks last said and its stack; then the rank that holds the others up, and what is said of it
STUCK = [
    ({0: ("measure", 4, BACKWARD), 1: ("measure", 4, HANGS)}, 1, "faults.py"),
    ({0: ("measure", 3, HANGS), 1: ("measure", 4, BACKWARD)}, 0, "measure, step 3 of 9"),
    ({0: ("measure", 4, BACKWARD), 1: ("measure", 4, BACKWARD)}, None, "rank 1"),
    ({0: ("export", 2, HANGS), 1: ("measure", 9, "")}, 1, "measure, step 9 of 9"),
    ({0: ("setup", 0, BACKWARD)}, 1, "did not start"),
    ({}, None, "rank 0 did not start, rank 1 did not start"),
]


@pytest.mark.parametrize(("said", "rank", "part"), STUCK)
def test_the_rank_that_the_others_wait_for(
    said: dict[int, tuple[str, int, str]], rank: int | None, part: str, tmp_path: Path
) -> None:
    pass_dir = PassDir(tmp_path / "plain")
    for number, (_, _, stack) in said.items():
        pass_dir.rank(number).path.mkdir(parents=True)
        pass_dir.rank(number).stack.write_text(stack)
    progress = {number: RankProgress(phase=phase, step=step, of=9) for number, (phase, step, _) in said.items()}
    failure = failure_of(
        pass_dir, Ended(returncode=-9, cut=Cut("stall", "no rank made progress"), progress=progress), range(2), 0.0
    )
    assert failure is not None
    assert failure.rank == rank
    assert part in failure.message


def file_of(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("fault", "part"), [("absent", "does not exist"), ("empty", "is empty"), ("old", "is older")])
@pytest.mark.parametrize("name", ["rank.json", "steps.parquet", "trace.json.gz"])
def test_a_rank_file_that_is_not_there_is_named(name: str, fault: str, part: str, tmp_path: Path) -> None:
    pass_dir, begun = PassDir(tmp_path / "torch"), 1_000_000.0
    for rank in (0, 1):
        for path in (pass_dir.rank(rank).info, pass_dir.rank(rank).steps, pass_dir.rank(rank).trace):
            file_of(path, "x")
    assert missing_file(pass_dir, range(2), begun) is None
    broken = pass_dir.rank(1).path / name
    if fault == "absent":
        broken.unlink()
    elif fault == "empty":
        broken.write_text("")
    else:
        os.utime(broken, (begun - 60, begun - 60))
    failure = missing_file(pass_dir, range(2), begun)
    assert failure is not None
    assert (failure.rank, failure.kind) == (1, "missing_file")
    assert name in failure.message
    assert part in failure.message


def test_a_rank_s_own_error_counts_if_torchrun_fails_to_collect_it(tmp_path: Path) -> None:
    """torchrun reads the ranks' reports while they are written, and ends with a traceback of its own."""
    pass_dir = PassDir(tmp_path / "plain")
    pass_dir.path.mkdir()
    pass_dir.agent_log.parent.mkdir(parents=True, exist_ok=True)
    pass_dir.agent_log.write_text("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n")
    for rank, error in ((0, CLOSED), (1, "KeyError: first")):
        pass_dir.rank(rank).path.mkdir(parents=True)
        pass_dir.rank(rank).info.write_text(json.dumps({"rank": rank, "status": "failed", "error": error}))
    local = pass_dir.torchrun / "id_x" / "attempt_0" / "1"
    local.mkdir(parents=True)
    trace = 'Traceback (most recent call last):\n  File "train.py", line 3, in step\nKeyError: first'
    (local / "error.json").write_text(
        json.dumps({"message": {"message": "KeyError: first", "extraInfo": {"py_callstack": trace}}})
    )
    (local / "stderr.log").write_text(trace)
    failure = failure_of(pass_dir, Ended(returncode=1, cut=None, progress={}), range(2), 0.0)
    assert failure is not None and (failure.rank, failure.message) == (1, "raised KeyError: first")
    assert "train.py" in (failure.traceback or "") and failure.log == str(local / "stderr.log")
