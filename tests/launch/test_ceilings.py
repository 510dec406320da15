"""`rankscope ceilings` with real ranks on a CPU: what it measures, that it is kept, and where the analysis finds it."""

import json
from pathlib import Path

import pytest

from rankscope.analysis.measure.ceilings import load, of_run
from rankscope.conf.user_cache import cache_folder
from rankscope.launch.ceilings import main


@pytest.mark.distributed
def test_measured_once_and_found_by_the_analysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SLURMD_NODENAME", "node7")  # ranks of a SLURM job state this name as their host
    assert main(["device=cpu", "world_size=2", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    factors = {
        "allreduce": 1.0,
        "broadcast": 1.0,
        "reducescatter": 0.5,
        "allgather": 0.5,
        "alltoall": 0.5,
        "reduce": 1.0,
        "sendrecv": 1.0,
    }  # two ranks, as in nccl-tests
    assert set(factors) - {"reducescatter", "allgather"} <= set(found["collectives"]) <= set(factors)
    for kind, rows in found["collectives"].items():
        for size, took_us, busbw in rows:
            assert busbw == pytest.approx(size / took_us / 1000 * factors[kind], rel=1e-2)
    assert found["matmul_TFLOPs"]["fp32"] > 0 and found["launch_us"] > 0 and found["host_GBs"] > 0
    assert found["h2d_pinned_GBs"] is None
    (path,) = cache_folder().iterdir()
    assert main(["device=cpu", "world_size=2"]) == 0
    captured = capfd.readouterr()
    assert "measuring" not in captured.err and "Bus bandwidth" in captured.out
    assert max(map(len, captured.out.splitlines()[:-1])) <= 80
    infos = [{"host": "node7", "device_name": None, "backend": "gloo"}] * 2
    assert of_run(infos, cache_folder()) == load(path)
    assert of_run(infos[:1], cache_folder()) is None  # other ranks, other numbers


@pytest.mark.distributed
def test_ranks_that_fail_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere")
    assert main(["device=cpu", "world_size=2"]) == 2
    assert "rankscope ceilings: the ranks ended with exit status 1" in capfd.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--fast"]) == 2
    assert main(["world_size=none"]) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert main(["device=cpu"]) == 2
    first, second, _, last = capfd.readouterr().err.splitlines()
    assert "--fast: no such option" in first and "world_size" in second
    assert last.startswith("rankscope ceilings: /dev/null") and last.endswith("to a folder you may write")
