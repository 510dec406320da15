"""Scripts of several ranks whose end, or whose steps, differ from an ordinary loop's: what was recorded is kept."""

import socket
from pathlib import Path

import pytest

from rankscope.conf import RunDir

from ..conftest import of_run, read_json, start_launcher

LOOP = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
plain = torch.nn.Linear(8, 1)
model = DistributedDataParallel(plain)
optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
def data(batches=40, size=4):
    return DataLoader(TensorDataset(torch.randn(batches * size, 8)), size)
def step(inputs, model=model):
    optimizer.zero_grad(); model(inputs).square().sum().backward(); optimizer.step()
def train(batches=40, after=lambda: None):
    for (inputs,) in data(batches):
        step(inputs); after()
"""
SMALL = (
    *("script=train.py", "world_size=2", "device=cpu", "steps=4", "warmup_steps=2", "seconds=0", "passes=[plain]"),
    *("profile.wait=1", "profile.warmup=1", "profile.active=2", "launch.min_free_mb=1"),
)
pytestmark = pytest.mark.distributed


def launch(
    folder: Path, code: str, *overrides: str, monkeypatch: pytest.MonkeyPatch, limit_s: float = 120
) -> tuple[int, str, RunDir]:
    """Record a script in `folder`; returns the exit status, stderr and the run folder."""
    (folder / "train.py").write_text(LOOP + code)
    monkeypatch.chdir(folder)
    run_dir = RunDir(folder / "run")
    launcher = start_launcher(f"run_dir={run_dir.path}", *overrides, base=SMALL)
    try:
        _, err = launcher.communicate(timeout=limit_s)
    finally:
        launcher.kill()
    assert of_run(run_dir.path) == []
    return launcher.returncode, err, run_dir


def infos(run_dir: RunDir, name: str = "plain") -> list[dict[str, object]]:
    return [read_json(rank.info) for rank in run_dir.for_pass(name).ranks()]


def notes(run_dir: RunDir) -> str:
    return "\n".join(str(info.get("notes", "")) for info in infos(run_dir))


# Each goes on in its own way after the sixth recorded step: the code, more overrides, and what is said of it.
AFTER = {
    "a finally block that fails, main under record": (
        """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    try:
        train(); best = 1
    finally:
        print("best", best)
main()
""",
        (),
        "after everything was recorded the script raised UnboundLocalError",
    ),
    "os._exit": ("train(); os._exit(0)", ("run_on=true",), ""),
    "children that it forks, and a failure of its own": (
        """
def child():
    if os.fork() == 0:
        open(f"child-{rank}", "w").write("x"); sys.exit(0)
    assert os.wait()[1] == 0
train(after=child)
raise ValueError("late")
""",
        ("run_on=true",),
        "ValueError: late",
    ),
    "goes on for longer than a stall": (
        "train(after=lambda: time.sleep(0.5))",
        ("run_on=true", "launch.stall_timeout_s=16"),
        "",
    ),
    "hangs when it ends": (
        "import atexit; atexit.register(time.sleep, 600); train()",
        ("launch.stall_timeout_s=16", "launch.grace_s=1"),
        "everything was recorded; its ranks were ended: the script did not end",
    ),
    "catches everything, for ever": (
        "while True:\n    try:\n        train()\n    except:\n        pass\n",
        (),
        "caught its end (a bare except)",
    ),
}


@pytest.mark.parametrize("case", AFTER)
def test_what_follows_the_last_step_is_at_most_a_note(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, overrides, said = AFTER[case]
    status, err, run_dir = launch(tmp_path, code, *overrides, monkeypatch=monkeypatch)
    assert status == 0, err
    assert said in err + notes(run_dir)
    assert [(info["status"], info["steps"]) for info in infos(run_dir)] == [("ok", 6)] * 2
    assert run_dir.read_record()["passes"] == {"plain": "completed"}


# What ranks do that do not step alike, and the steps that each of them records.
UNLIKE = {
    "uneven inputs under Join": (
        "from torch.distributed.algorithms.join import Join\nwith Join([model]): train(40 if rank == 0 else 4)\n"
        "dist.barrier(); print('END', rank)",
        [6, 3],
    ),
    "rank 0 steps alone first": (
        """
if rank == 0:
    other = torch.nn.Linear(8, 1); alone = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(3):
        other(torch.randn(4, 8)).sum().backward(); alone.step()
dist.barrier(); train(); print("END", rank)
""",
        [6, 6],
    ),
    "rank 0 evaluates alone": (
        "for epoch in range(3):\n    train(4)\n    if rank == 0:\n        for (inputs,) in data(30): plain(inputs)\n"
        "    dist.barrier()\nprint('END', rank)",
        [6, 6],
    ),
    "two loaders walked together": (
        "with torch.no_grad():\n    for (a,), (b,) in zip(data(), data(40, 2)):\n"
        "        plain(torch.cat([a, b])); dist.all_reduce(torch.ones(1))\nprint('END', rank)",
        [40, 40],
    ),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_ranks_that_do_not_step_alike_end_by_themselves(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, steps = UNLIKE[case]
    overrides = ("launch.stall_timeout_s=16", "run_on=true")
    status, err, run_dir = launch(tmp_path, code, *overrides, monkeypatch=monkeypatch)
    assert status == 0, err
    assert [info["steps"] for info in infos(run_dir)] == steps
    assert ("do not step alike" in notes(run_dir)) == (len(set(steps)) > 1)
    for path in run_dir.for_pass("plain").torchrun.glob("*/*/*/stdout.log"):
        assert "END" in path.read_text()
    if case.startswith("two loaders"):
        assert [info["samples_per_step"] for info in infos(run_dir)] == [6, 6]
        assert "2 loaders" in notes(run_dir)


# A learner steps, an actor only receives what it learned.
ACTOR = """
for number in range({rounds}):
    if rank == 0:
        step(torch.randn(4, 8), plain)
    dist.broadcast(plain.weight.data, 0)
    time.sleep({pause})
print("END", rank)
"""


@pytest.mark.parametrize(("rounds", "pause"), [(20, 0), (20, 3)], ids=["ends by itself", "goes on"])
def test_a_rank_without_steps_is_named(
    rounds: int, pause: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = ACTOR.format(rounds=rounds, pause=pause)
    status, err, _ = launch(tmp_path, code, "launch.stall_timeout_s=16", "launch.grace_s=1", monkeypatch=monkeypatch)
    assert status == 2
    assert "rank 1 made no step" in err or "rank 1: train.py ended without a step" in err
    assert "Recorder().step()" in err and "Traceback" not in err


def test_a_script_that_ends_itself_says_why_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import argparse\nargparse.ArgumentParser(prog='train').parse_args()\n"
    status, err, _ = launch(tmp_path, code, "world_size=1", "--", "--nope", "3", monkeypatch=monkeypatch)
    assert status == 2
    assert "ended itself with exit status 2" in err and "train: error: unrecognized arguments: --nope 3" in err


def test_a_loop_without_a_step_is_told_so_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from rankscope.harness import Recorder\nRecorder(); train(after=lambda: time.sleep(0.05)); print('END')\n"
    status, err, run_dir = launch(tmp_path, code, "world_size=1", monkeypatch=monkeypatch)
    assert status == 2 and "ended without a step" in err
    assert "backward passes, and no step was found; the script goes on" in err and "steps_from=backward" in err
    (said,) = run_dir.for_pass("plain").torchrun.glob("*/*/0/stdout.log")
    assert "END" in said.read_text()


def test_a_stuck_rank_is_named_without_a_signal_of_the_script_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import signal
signal.signal(signal.SIGUSR1, lambda *_: open(f"requeued-{rank}", "w").close())
steps = iter(range(99))
train(after=lambda: time.sleep(600) if rank == 1 and next(steps) == 3 else None)
"""
    status, err, _ = launch(tmp_path, code, "launch.stall_timeout_s=16", "launch.grace_s=1", monkeypatch=monkeypatch)
    assert status == 2
    assert "furthest behind: rank 1 in" in err and "train.py" in err and "harness" not in err
    assert not list(tmp_path.glob("requeued-*"))


def test_a_stopped_rank_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import signal
steps = iter(range(99))
train(after=lambda: os.kill(os.getpid(), signal.SIGSTOP) if rank == 1 and next(steps) == 3 else None)
"""
    status, err, run_dir = launch(
        tmp_path, code, "launch.stall_timeout_s=16", "launch.grace_s=1", monkeypatch=monkeypatch
    )
    assert status == 2
    assert "rank 1 in" in err and "does not answer: it is stopped" in err
    assert run_dir.read_record()["failure"]["rank"] == 1


def test_a_process_that_ends_itself_too_early_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, err, _ = launch(tmp_path, "train(3); dist.barrier(); os._exit(0)", monkeypatch=monkeypatch)
    assert status == 2
    assert "ended itself with status 0 before its steps were recorded" in err


def test_without_a_home_and_with_nobody_who_reads_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that is started with any uid, and piped into `head`."""
    (tmp_path / "train.py").write_text(f"{LOOP}\ntrain()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nowhere/at/all")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    from rankscope.launch.run import record

    launcher = start_launcher("run_dir=run", base=SMALL, analysis=tuple(record._ANALYSIS))
    assert launcher.stdout is not None and launcher.stderr is not None
    launcher.stdout.close()
    launcher.stderr.close()
    assert launcher.wait(timeout=120) == 0
    assert (tmp_path / "run" / "analysis" / "summary.json").exists()
    assert RunDir(tmp_path / "run").read_record()["status"] == "completed"


def test_a_rendezvous_that_another_program_has_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        limits = (f"launch.rdzv_endpoint={endpoint}", "launch.stall_timeout_s=8", "launch.grace_s=1")
        status, err, _ = launch(tmp_path, "train()", *limits, monkeypatch=monkeypatch)
    assert status == 2
    assert f"launch.rdzv_endpoint={endpoint} may be taken by another program" in err


def test_what_is_piped_in_reaches_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "lines = sys.stdin.read() if rank == 0 else ''\nprint('read', lines) if rank == 0 else None\ntrain()\n"
    (tmp_path / "train.py").write_text(LOOP + code)
    (tmp_path / "input").write_text("from a file")
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "input").open() as piped:
        launcher = start_launcher("run_dir=run", base=SMALL, stdin=piped)
        _, err = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, err
    (said,) = (tmp_path / "run").glob("passes/plain/torchrun/*/attempt_0/0/stdout.log")
    assert "read from a file" in said.read_text()
