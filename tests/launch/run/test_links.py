"""Two hosts with a narrow or a long link between them: the time is in the transfer, not with a rank."""

import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.conf import RunDir

from ..conftest import TINY, read_json
from .hosts import missing, two_hosts

_WHY_NOT = missing()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT)),
]
MBIT, DELAY_MS = 20, 50.0


@pytest.mark.parametrize("link", ["narrow", "long"])
def test_a_slow_link_is_exposed_transfer(link: str, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run = (sys.executable, "-m", "rankscope.conf.cli", "run", *TINY, "passes=[torch]", "profile.active=4")
    many = ("launch.nnodes=2", f"run_dir={run_dir.path}", f"launch.local_dir={tmp_path}/local")
    with two_hosts(tmp_path, DELAY_MS / 1000 if link == "long" else None) as hosts:
        if link == "narrow":
            hosts.limit(MBIT)
        launchers = [
            subprocess.Popen(hosts.command(number, *run, *many), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for number in (1, 2)
        ]
        said = [launcher.communicate(timeout=180)[1].decode() for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    summary = read_json(run_dir.analysis / "summary.json")
    (gradients,) = read_json(run_dir.for_pass("torch").rank(0).info)["bucket_bytes"]
    (calls,) = summary["collectives"]
    # each of two ranks sends all gradients once; or waits twice for a message of the other's
    least_ms = gradients * 8 / (MBIT * 1000) if link == "narrow" else 2 * DELAY_MS
    assert calls["transfer_ms_p50"] > 0.9 * least_ms
    if link == "narrow":
        assert calls["transfer_ms_p50"] < 1.3 * least_ms
    exposed_ms = sum(row["exposed_transfer_ms"] for row in summary["per_rank"]) / 2
    assert exposed_ms > 0.8 * least_ms
    gains = {item["id"]: item["recoverable_ms"] or 0.0 for item in summary["findings"]}
    late = {name for name in gains if name.startswith("straggler")}  # whichever rank a busy machine makes late
    assert gains["exposed_comm"] == max(gains[name] for name in gains.keys() - late), gains
