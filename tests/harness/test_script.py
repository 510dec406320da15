"""Scripts that know nothing of rankscope, or have a Recorder in them: as torchrun runs them, and recorded."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankscope.conf import RunDir, parse_config, save_config
from rankscope.harness import Recorder

from .tables import table_of

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {"steps": 3, "seconds": 0, "warmup_steps": 1, "profile": {"wait": 1, "warmup": 1, "active": 2}}
STEPS = {"plain": 1 + 3, "torch": 1 + 1 + 1 + 2}  # of a complete window
LOOP = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), 4)
def train(count, after=lambda: None):
    for number, (inputs,) in enumerate(loader):
        if number == count:
            break
        optimizer.zero_grad(); model(inputs).sum().backward(); optimizer.step(); after()
"""
pytestmark = pytest.mark.distributed


def prepare(path: Path, script: Path, **config: Any) -> RunDir:
    path.mkdir()
    run_dir = RunDir(path)
    save_config(parse_config({**QUICK, "script": str(script), **config}), run_dir.config)
    return run_dir


def alone(
    tmp_path: Path, code: str, name: str = "plain", **config: Any
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any], RunDir]:
    """Record a script as one process; returns how it ended and its rank.json."""
    script = tmp_path / "train.py"
    script.write_text(LOOP + code)
    run_dir = prepare(tmp_path / "run", script, **config)
    command = [sys.executable, "-m", "rankscope.harness", str(run_dir.path), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    info: dict[str, Any] = json.loads(run_dir.for_pass(name).rank(0).info.read_text())
    return done, info, run_dir


def torchrun(*command: str) -> str:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    done = subprocess.run(
        [*launcher, "--rdzv-endpoint=localhost:0", *command], capture_output=True, text=True, timeout=180, check=True
    )
    return done.stdout


def losses(text: str) -> list[str]:
    """Return every loss that was printed, with its step or rank: two ranks may write into one line."""
    return sorted(re.findall(r"(?:step \d+|rank \d last) loss \d+\.\d+", text))


def test_the_losses_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    script, arguments = EXAMPLES / "char_lm.py", ["--characters", "1500", "--workers", "1"]
    bare = losses(torchrun(str(script), *arguments))
    assert len(bare) == 3 + 2
    run_dir = prepare(tmp_path / "run", script, script_args=arguments, run_on=True, world_size=2)
    for name in ("plain", "torch"):
        assert losses(torchrun("-m", "rankscope.harness", str(run_dir.path), name)) == bare
        for rank in run_dir.for_pass(name).ranks():
            info = json.loads(rank.info.read_text())
            assert (info["status"], info["steps"], info["steps_from"]) == ("ok", STEPS[name], "optimizer")
            assert info["samples_per_step"] == 32
            rows = table_of(rank.steps)
            assert (rows[["data_wait_ns", "forward_ns", "backward_ns", "optimizer_ns"]] > 0).all(axis=None)


def test_a_script_ends_when_everything_is_recorded(tmp_path: Path) -> None:
    done, info, run_dir = alone(
        tmp_path, "try:\n    train(16)\nfinally:\n    print('finally', sys.argv[1:])\n", script_args=["--a", 1]
    )
    assert done.returncode == 0 and done.stdout == "finally ['--a', '1']\n"
    assert info["steps"] == 4 and "notes" not in info
    assert list(table_of(run_dir.for_pass("plain").rank(0).steps)["phase"]) == ["warmup", *["measured"] * 3]


def test_a_script_that_is_over_early_counts_whole_steps_only(tmp_path: Path) -> None:
    done, info, run_dir = alone(tmp_path, "train(4)", "torch", passes=["torch"])
    assert done.returncode == 0, done.stderr
    assert info["notes"] == ["the script ended after 3 steps (1 counted in torch)"]
    assert list(table_of(run_dir.for_pass("torch").rank(0).steps)["step"]) == [0, 1, 2]
    from rankscope.analysis import load

    assert load(run_dir.for_pass("torch").path).steps_analysed == [2]  # of step 3 the trace has a beginning


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("train(2)", "ended after 1 steps, all of them warm-up: this start needs 4"),
        ("", "ended without a step"),
        ("train(3); sys.exit(5)", "SystemExit: 5"),
        ("train(3); raise ValueError('no')", "ValueError: no"),
    ],
)
def test_what_gives_no_numbers_is_said(code: str, said: str, tmp_path: Path) -> None:
    done, info, _ = alone(tmp_path, code)
    assert done.returncode != 0 and info["status"] == "failed"
    assert said in info["error"]


RUNTIME = """
import sys, types, torch
class Runtime:  # what torch has where it is built for CUDA
    cudaError = types.SimpleNamespace(success=0)
    def cudaProfilerStart(self): print("recording opened"); return 0
    cudaProfilerStop = cudaProfilerStart
torch.cuda._cudart = runtime = Runtime()
torch.cuda.cudart = torch.cuda.profiler.cudart = lambda: runtime
from rankscope.harness.worker import main
main(sys.argv[1:])
from rankscope.harness.record import nsys_capture as capture
capture._START()
"""


@pytest.mark.parametrize(("name", "opened", "noted"), [("nsys", 1, True), ("plain", 5, False)])
def test_its_own_calls_do_not_open_the_recording_of_nsys(tmp_path: Path, name: str, opened: int, noted: bool) -> None:
    """Two pairs of calls by the script; the last call is as the window's own."""
    (tmp_path / "train.py").write_text(
        f"{LOOP}\nwith torch.cuda.profiler.profile():\n    pass\n"
        "torch.cuda.cudart().cudaProfilerStart(); torch.cuda.cudart().cudaProfilerStop()\ntrain(16)\n"
    )
    run_dir = prepare(tmp_path / "run", tmp_path / "train.py", passes=["plain", "nsys"], run_on=True)
    command = [sys.executable, "-c", RUNTIME, str(run_dir.path), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.stdout == "recording opened\n" * opened, done.stderr
    info = json.loads(run_dir.for_pass(name).rank(0).info.read_text())
    notes = ["the script's own cudaProfilerStart and Stop do nothing in the nsys pass"]
    assert info["status"] == "ok" and info.get("notes", []) == (notes if noted else [])


def test_its_own_profiler_marks_the_steps_and_stays_idle(tmp_path: Path) -> None:
    code = """
from torch.profiler import profile, schedule
with profile(schedule=schedule(wait=0, warmup=0, active=2), on_trace_ready=lambda p: p.export_chrome_trace("x")) as p:
    train(16, lambda: p.step())
    print(p.key_averages().table())
"""
    done, info, _run_dir = alone(tmp_path, code, "torch", passes=["torch"], run_on=True)
    assert done.returncode == 0, done.stderr
    assert (info["steps_from"], info["steps"], info["traces"]) == ("profiler", STEPS["torch"], ["trace.json.gz"])
    assert "is idle" in info["notes"][0]


def test_a_recorder_decides_where_steps_end(tmp_path: Path) -> None:
    code = """
from rankscope.harness import Recorder
recorder = Recorder()
for (inputs,) in recorder.loader(loader):
    with recorder.forward:
        loss = model(inputs).sum()
    optimizer.step(); optimizer.step()
    recorder.step()
"""
    done, info, run_dir = alone(tmp_path, code)
    assert done.returncode == 0, done.stderr
    rows = table_of(run_dir.for_pass("plain").rank(0).steps)
    assert (info["steps_from"], info["samples_per_step"]) == ("recorder", 4)
    assert list(rows["first_of_epoch"]) == [True, False, False, False]
    assert (rows[["data_wait_ns", "forward_ns", "optimizer_ns"]] > 0).all(axis=None)
    assert rows["backward_ns"].isna().all()


def test_elsewhere_a_recorder_is_nothing() -> None:
    recorder, loader = Recorder(), [1, 2]
    assert recorder.loader(loader) is loader and not recorder.active
    with recorder.forward, recorder.data_wait:
        recorder.step()
