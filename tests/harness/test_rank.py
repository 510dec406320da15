"""Real ranks, started by torchrun or alone, and what they leave behind."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.conf import RankDir, RunDir, parse_config, save_config
from rankscope.conf.contract import KEY_AVERAGES, STACKS

from .tables import table_of

RANGES = {"data_wait", "h2d", "forward", "backward", "optimizer"}
QUICK = {
    "model": {"name": "mlp"},
    "batch_size": 4,
    "steps": 3,
    "seconds": 0,
    "warmup_steps": 1,
    "log_every": 1,
    "threads": 1,
    "profile": {"wait": 0, "warmup": 1, "active": 2},
}
ALONE = {**QUICK, "ddp": {"enabled": False}}

pytestmark = pytest.mark.distributed


def prepare(path: Path, config: dict[str, Any]) -> RunDir:
    path.mkdir()
    run_dir = RunDir(path)
    save_config(parse_config(config), run_dir.config)
    return run_dir


def torchrun(run_dir: RunDir, pass_name: str, ranks: int) -> list[str]:
    logs = str(run_dir.for_pass(pass_name.partition(",")[0]).torchrun)
    options = [f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *options, "--log-dir", logs, "--redirects=3"]
    return [*launcher, "-m", "rankscope.harness", str(run_dir.path), pass_name]


def alone(run_dir: RunDir, pass_name: str) -> list[str]:
    return [sys.executable, "-m", "rankscope.harness", str(run_dir.path), pass_name]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def read_trace(rank: RankDir) -> dict[str, Any]:
    with gzip.open(rank.trace) as file:
        trace: dict[str, Any] = json.load(file)
    return trace


def annotations(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen within 30 s")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Two ranks over gloo in two starts, the second with two windows."""
    run_dir = prepare(tmp_path_factory.mktemp("two") / "run", {**QUICK, "world_size": 2})
    for names in ("plain", "torch,detail"):
        subprocess.run(torchrun(run_dir, names, 2), check=True, capture_output=True, timeout=180)
    return run_dir


def test_every_rank_says_who_it_was(run: RunDir) -> None:
    for name, steps, traces in (("plain", 4, []), ("torch", 4, ["trace.json.gz"])):
        infos = [read_json(rank.info) for rank in run.for_pass(name).ranks()]
        assert [info["rank"] for info in infos] == [0, 1]
        assert {info["boot_id"] for info in infos} == {infos[0]["boot_id"]}
        for info in infos:
            assert info["status"] == "ok" and info["error"] is None
            assert (info["pass"], info["backend"], info["device"], info["world_size"]) == (name, "gloo", "cpu", 2)
            assert (info["steps"], info["traces"]) == (steps, traces)
            assert info["memory_peak_bytes"] is None and info["nccl"] is None
        assert all(read_json(rank.progress)["phase"] == "done" for rank in run.for_pass(name).ranks())


def test_steps_follow_each_other(run: RunDir) -> None:
    for name, phases in (
        ("plain", ["warmup", *["measured"] * 3]),
        ("torch", ["warmup", "active", "active", "active"]),
    ):
        for rank in run.for_pass(name).ranks():
            steps = table_of(rank.steps)
            assert list(steps["step"]) == [0, 1, 2, 3]
            assert list(steps["phase"]) == phases
            assert list(steps["first_of_epoch"]) == [True, False, False, False]
            assert (steps["host_ns"] == steps["data_wait_ns"] + steps["launch_ns"]).all()
            parts = steps[["data_wait_ns", "h2d_ns", "forward_ns", "backward_ns", "optimizer_ns"]]
            assert (parts >= 0).all(axis=None) and (parts.sum(axis=1) <= steps["host_ns"]).all()
            assert steps[["device_ns", "memory_allocated_bytes", "memory_peak_bytes"]].isna().all(axis=None)


def test_measuring_does_not_change_the_training(run: RunDir) -> None:
    for rank in (0, 1):
        plain, traced = (table_of(run.for_pass(name).rank(rank).steps)["loss"] for name in ("plain", "torch"))
        assert plain.notna().all()
        assert list(plain) == list(traced)


def test_a_validation_loop_has_no_gradients_and_one_loss(tmp_path: Path) -> None:
    run_dir = prepare(tmp_path / "run", {**QUICK, "world_size": 2, "mode": "eval"})
    subprocess.run(torchrun(run_dir, "plain", 2), check=True, capture_output=True, timeout=180)
    steps = [table_of(rank.steps) for rank in run_dir.for_pass("plain").ranks()]
    assert list(steps[0]["loss"]) == list(steps[1]["loss"])  # averaged over the ranks
    assert all(table[["backward_ns", "optimizer_ns"]].isna().all(axis=None) for table in steps)
    assert all((table["forward_ns"] > 0).all() for table in steps)


def test_an_answer_is_timed_without_the_loader(tmp_path: Path) -> None:
    config = {**ALONE, "mode": "inference", "warmup_steps": 50}
    run_dir = prepare(tmp_path / "run", config)
    for name in ("plain", "torch"):
        subprocess.run(alone(run_dir, name), check=True, capture_output=True, timeout=180)
    steps = table_of(run_dir.for_pass("plain").rank(0).steps)
    assert len(steps) == 53 and (steps["data_wait_ns"] == 0).all() and steps["loss"].isna().all()
    assert (steps["h2d_ns"] + steps["forward_ns"] <= steps["host_ns"]).all()
    names = [event["name"] for event in annotations(read_trace(run_dir.for_pass("torch").rank(0)))]
    assert "forward" in names and "backward" not in names


def test_ranks_train_one_model_on_their_own_data(run: RunDir) -> None:
    losses = [list(table_of(rank.steps)["loss"]) for rank in run.for_pass("plain").ranks()]
    assert all(a != b for a, b in zip(*losses, strict=True))


def test_the_window_holds_its_own_steps_with_all_their_ranges(run: RunDir) -> None:
    for rank in run.for_pass("torch").ranks():
        trace = read_trace(rank)
        found = annotations(trace)
        steps = {event["name"]: event for event in found if event["name"].startswith("ProfilerStep#")}
        active = table_of(rank.steps).query("phase == 'active'")
        assert sorted(steps) == [f"ProfilerStep#{step}" for step in active["step"]]
        for step in steps.values():
            inside = {e["name"] for e in found if step["ts"] <= e["ts"] < step["ts"] + step["dur"]}
            assert inside >= RANGES
        reductions = [event for event in trace["traceEvents"] if event.get("name") == "gloo:all_reduce"]
        assert len(reductions) >= len(steps)


def test_a_trace_says_whose_it_is(run: RunDir) -> None:
    for rank in run.for_pass("torch").ranks():
        trace, info = read_trace(rank), read_json(rank.info)
        assert trace["distributedInfo"]["rank"] == rank.rank
        for key in ("rank", "host", "boot_id", "config_hash"):
            assert trace[f"rankscope_{key}"] == info[key]


def test_tensorboard_finds_the_traces_and_they_hold_no_path(run: RunDir) -> None:
    """torch-tb-profiler looks for `<worker>.<number>.pt.trace.json.gz` in one folder."""
    for rank in run.for_pass("torch").ranks():
        link = rank.tensorboard(rank.trace)
        assert re.fullmatch(r"rank\d+\.\d+\.pt\.trace\.json\.gz", link.name)
        assert link.resolve() == rank.trace.resolve()
        assert read_trace(rank)["traceName"] == f"rank{rank.rank}/trace.json.gz"


def test_key_averages_agree_with_the_trace(run: RunDir) -> None:
    rank = run.for_pass("detail").rank(0)
    averages = table_of(rank.key_averages, KEY_AVERAGES)
    assert averages["self_cpu_ns"].is_monotonic_decreasing
    assert "ProfilerStep" in rank.key_averages.with_suffix(".txt").read_text()
    events = [event["name"] for event in read_trace(rank)["traceEvents"] if event.get("cat") == "cpu_op"]
    assert averages.groupby("name")["count"].sum()["aten::addmm"] == events.count("aten::addmm") > 0


def test_clocks_of_one_host_agree_within_the_round_trip(run: RunDir) -> None:
    for name in ("plain", "torch"):
        for rank in run.for_pass(name).ranks():
            probes = read_json(rank.info)["clock_probes"]
            assert [probe["when"] for probe in probes] == ["before", "after"]
            for probe in probes:
                assert abs(probe["offset_ns"]) <= probe["rtt_ns"]


def test_nothing_puzzling_in_the_logs(run: RunDir) -> None:
    streams = list(run.path.glob("passes/*/torchrun/*/attempt_0/*/std*.log"))
    assert len(streams) == 8
    lines = [line for stream in streams for line in stream.read_text().splitlines()]
    # torch 2.13 announces its profiler with USDT. A profiler of memory says that blocks are older than itself.
    torch_says = ("USDT:", "Memory block of unknown size was allocated before the profiling started")
    assert [line for line in lines if not any(text in line for text in torch_says)] == []


def test_an_error_in_the_window_keeps_trace_and_steps(tmp_path: Path) -> None:
    run_dir = prepare(tmp_path / "run", {**ALONE, "scenario": {"fault": "raise", "step": 3}})
    done = subprocess.run(alone(run_dir, "torch"), capture_output=True, text=True, timeout=180)
    rank = run_dir.for_pass("torch").rank(0)
    assert done.returncode == 1 and "InjectedFault" in done.stderr
    info = read_json(rank.info)
    assert info["status"] == "failed" and info["error"].startswith("InjectedFault: scenario.fault=raise")
    assert list(table_of(rank.steps)["step"]) == [0, 1, 2, 3]
    assert "ProfilerStep#2" in {event["name"] for event in annotations(read_trace(rank))}
    assert read_json(rank.info)["traces"] == ["trace.json.gz"]


def test_a_rank_stuck_in_a_collective_shows_where_and_saves_when_told_to_end(tmp_path: Path) -> None:
    config = {**QUICK, "world_size": 2, "scenario": {"fault": "hang", "rank": 1, "step": 2}}
    run_dir = prepare(tmp_path / "run", config)
    stuck, hung = (run_dir.for_pass("plain").rank(rank) for rank in (0, 1))
    agent = subprocess.Popen(torchrun(run_dir, "plain", 2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: hung.progress.exists() and read_json(hung.progress)["phase"] == "measure")
        time.sleep(1)  # let rank 0 reach the all-reduce that rank 1 never joins
        pids = {rank.rank: read_json(rank.progress)["pid"] for rank in (stuck, hung)}
        for pid in pids.values():
            os.kill(pid, STACKS)
        wait_for(lambda: "in _hang" in hung.stack.read_text() and "in step" in stuck.stack.read_text())
        os.kill(pids[0], signal.SIGTERM)
        agent.wait(timeout=180)
    finally:
        agent.kill()
        agent.wait()
    info = read_json(stuck.info)
    assert (info["status"], info["error"], info["steps"]) == ("failed", "SIGTERM", 3)
    steps = table_of(stuck.steps)
    assert list(steps["step"]) == [0, 1, 2]
    assert list(steps["host_ns"].isna()) == [False, False, True]


def test_a_rank_dies_with_its_parent(tmp_path: Path) -> None:
    run_dir = prepare(tmp_path / "run", {**ALONE, "scenario": {"fault": "hang"}})
    rank = run_dir.for_pass("plain").rank(0)
    parent = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({alone(run_dir, 'plain')})"])
    try:
        wait_for(lambda: rank.progress.exists())
        pid = read_json(rank.progress)["pid"]
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not alive(pid))


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_rank_without_its_device_says_so_in_one_line(tmp_path: Path) -> None:
    run_dir = prepare(tmp_path / "run", {**ALONE, "device": "cuda"})
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(alone(run_dir, "plain"), env=environment, capture_output=True, timeout=180)
    assert done.returncode == 1
    assert read_json(run_dir.for_pass("plain").rank(0).info)["error"].startswith(
        "ConfigError: device=cuda: torch finds"
    )
