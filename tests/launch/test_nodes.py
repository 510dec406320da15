"""One run over two hosts: joined from one configuration, collected, and ended together whatever fails."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rankscope.conf import RunDir

from .conftest import TINY, of_run, read_json, wait_for
from .hosts import Hosts, missing, two_hosts

_WHY_NOT = missing()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("hosts"),
    pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT)),
]
ENDLESS = ("steps=1000000", "passes=[plain]")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found


class Pair:
    """The same command on both hosts."""

    def __init__(self, hosts: Hosts, folder: Path, *overrides: str) -> None:
        self.run_dir = RunDir(folder / "run")
        self.local = folder / "local"
        launch = ("launch.nnodes=2", "launch.rdzv_endpoint=host1:29511", f"launch.local_dir={self.local}")
        same = (*TINY, *launch, f"run_dir={self.run_dir.path}", "launch.node_timeout_s=20", *overrides)
        self.launchers = [
            subprocess.Popen(
                hosts.command(number, sys.executable, "-m", "rankscope.conf.cli", "run", *same),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for number in (1, 2)
        ]

    def ended(self) -> list[tuple[int, str]]:
        """Return exit status and words of both launchers."""
        said = [launcher.communicate(timeout=120)[0] for launcher in self.launchers]
        return [(launcher.returncode, text) for launcher, text in zip(self.launchers, said, strict=True)]

    def measuring(self) -> None:
        """Wait until both ranks train."""

        def trains() -> bool:
            found = [json.loads(path.read_text()) for path in self.local.rglob("progress.json")]
            return len(found) == 2 and all(progress["phase"] == "measure" for progress in found)

        wait_for(trains, "both ranks to train")

    def leaves_nothing(self) -> None:
        assert of_run(self.run_dir.path) == [] and of_run(self.local) == []
        assert not self.local.exists() or list(self.local.iterdir()) == []


def test_one_run_over_two_hosts(hosts: Hosts, tmp_path: Path) -> None:
    pair = Pair(hosts, tmp_path)
    (status1, said1), (status2, said2) = pair.ended()
    assert (status1, status2) == (0, 0), said1 + said2
    assert sum("the first node analyses" in said for said in (said1, said2)) == 1
    assert read_json(pair.run_dir.record)["status"] == "completed"
    infos = [read_json(rank.info) for rank in pair.run_dir.for_pass("torch").ranks()]
    assert {info["host"] for info in infos} == {"host1", "host2"}
    assert {read_json(pair.run_dir.node(number).info)["host"] for number in (0, 1)} == {"host1", "host2"}
    summary = read_json(pair.run_dir.analysis / "summary.json")
    assert summary["ranks"] == [0, 1] and summary["missing_ranks"] == []
    pair.leaves_nothing()


def test_another_configuration_may_not_join(hosts: Hosts, tmp_path: Path) -> None:
    first = Pair(hosts, tmp_path, "passes=[plain]", "launch.join_timeout_s=15")
    first.launchers[1].kill()
    first.launchers[1].wait()
    wait_for(first.run_dir.config.exists, "the first node's configuration")
    other = hosts.command(
        2, sys.executable, "-m", "rankscope.conf.cli", "run", *TINY, "batch_size=3", "launch.nnodes=2",
        "launch.rdzv_endpoint=host1:29511", f"run_dir={first.run_dir.path}",
    )  # fmt: skip
    refused = subprocess.run(other, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "batch_size=3 (the first node: 2)" in refused.stderr
    status, said = first.ended()[0]
    assert status == 2 and "1 of 2 nodes joined" in said and "host1" in said
    first.leaves_nothing()


def test_the_cause_on_one_host_is_named_on_both(hosts: Hosts, tmp_path: Path) -> None:
    pair = Pair(hosts, tmp_path, "scenario.fault=raise", "scenario.rank=1", "scenario.step=2", "passes=[plain]")
    for status, said in pair.ended():
        assert status == 2
        assert "rank 1: raised" in said and "InjectedFault" in said
    failure = read_json(pair.run_dir.record)["failure"]
    assert (failure["kind"], failure["rank"]) == ("raise", 1)
    assert Path(failure["log"]).exists() and str(pair.run_dir.path) in failure["log"]
    pair.leaves_nothing()


def test_a_killed_agent_ends_both_hosts(hosts: Hosts, tmp_path: Path) -> None:
    pair = Pair(hosts, tmp_path, *ENDLESS)
    pair.measuring()
    launcher = psutil.Process(pair.launchers[1].pid)  # the host's shell has become it
    (agent,) = [child for child in launcher.children() if "torch.distributed.run" in " ".join(child.cmdline())]
    agent.send_signal(signal.SIGKILL)
    for status, said in pair.ended():
        assert status == 2 and "SIGKILL" in said
    pair.leaves_nothing()


def test_a_cut_link_is_a_stall_of_both(hosts: Hosts, tmp_path: Path) -> None:
    pair = Pair(hosts, tmp_path, *ENDLESS, "launch.stall_timeout_s=8")
    pair.measuring()
    hosts.cut()
    began = time.monotonic()
    for status, said in pair.ended():
        assert status == 2 and ("stall" in said or "no rank made progress" in said)
    assert time.monotonic() - began < 90
    pair.leaves_nothing()
