"""One run over two hosts: joined from one configuration, collected, and ended together whatever fails."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rankscope.conf import RunDir

from ..conftest import TINY, of_run, read_json, wait_for
from .hosts import Hosts, missing, two_hosts

_WHY_NOT = missing()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT)),
]
ENDLESS = ("steps=1000000", "passes=[plain]")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found


@pytest.fixture
def start(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., "Pair"]]:
    """Give what starts a run on both hosts; whatever a failed test left of it is ended."""
    begun: list[Pair] = []

    def begin(*overrides: str, second: tuple[str, ...] = ()) -> Pair:
        begun.append(Pair(hosts, tmp_path, *overrides, second=second))
        return begun[-1]

    yield begin
    for launcher in [launcher for pair in begun for launcher in pair.launchers]:
        launcher.terminate()
        launcher.communicate(timeout=180)


class Pair:
    """The same command on both hosts; `second`: variables of the second host."""

    def __init__(self, hosts: Hosts, folder: Path, *overrides: str, second: tuple[str, ...] = ()) -> None:
        self.run_dir = RunDir(folder / "run")
        self.local = folder / "local"
        launch = ("launch.nnodes=2", "launch.rdzv_endpoint=host1:29511", f"launch.local_dir={self.local}")
        same = (*TINY, *launch, f"run_dir={self.run_dir.path}", "launch.node_timeout_s=20", *overrides)
        run = (sys.executable, "-m", "rankscope.conf.cli", "run", *same)
        self.launchers = [
            subprocess.Popen(
                hosts.command(number, "env", *(second if number == 2 else ()), *run),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for number in (1, 2)
        ]

    def ended(self) -> list[tuple[int, str]]:
        """Return exit status and words of both launchers."""
        said = [launcher.communicate(timeout=180)[0] for launcher in self.launchers]
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


def test_one_run_over_two_hosts(start: Callable[..., "Pair"], hosts: Hosts, tmp_path: Path) -> None:
    pair = start()
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


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the clock's shim: apt-get install gcc")
@pytest.mark.parametrize("fault", ["none", "data"])
def test_hosts_seconds_apart_and_drifting_are_put_on_one_clock(
    start: Callable[..., "Pair"], hosts: Hosts, tmp_path: Path, fault: str
) -> None:
    shim = tmp_path / "skew.so"
    source = Path(__file__).parent / "skew.c"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
    planted = ("scenario.fault=data", "scenario.rank=1", "scenario.ms=1000") if fault == "data" else ()
    window = ("batch_size=16", "profile.warmup=2", "profile.active=11")  # enough to judge where ranks share cores
    clock = (f"LD_PRELOAD={shim}", "SKEW_S=3.5", "SKEW_PPM=200")
    pair = start(*window, *planted, second=clock)
    ended = pair.ended()
    assert [status for status, _ in ended] == [0, 0], ended
    infos = {info["rank"]: info for info in (read_json(r.info) for r in pair.run_dir.for_pass("torch").ranks())}
    ahead = {rank: 3.5e6 if info["host"] == "host2" else 0.0 for rank, info in infos.items()}
    summary = read_json(pair.run_dir.analysis / "summary.json")
    alignment = summary["alignment"]
    offset = alignment["offset_us"]["1"] - alignment["offset_us"]["0"]
    wanted = ahead[1] - ahead[0]
    drifted = 200e-6 * 60e6  # at most this far in the minute since the process began
    assert abs(offset - wanted) <= drifted + alignment["error_bound_us"] + 1000
    assert abs(offset - alignment["probes"]["1"]["offset_us"]) <= (
        alignment["error_bound_us"] + alignment["probes"]["1"]["error_us"]
    )
    first, last = infos[1]["clock_probes"]
    known_to = 1e6 * (first["rtt_ns"] + last["rtt_ns"]) / 2 / (last["time_ns"] - first["time_ns"])
    if alignment["drift_ppm"]["1"] is not None:  # on a machine too busy to time a message no drift is claimed
        assert alignment["drift_ppm"]["1"] == pytest.approx(200 if ahead[1] else -200, abs=known_to + 1)
    assert alignment["error_bound_us"] < 20_000 and alignment["causality_violations"] == 0
    if fault == "data":
        late = summary["stragglers"]
        assert (late["rank"], late["cause"]) == (1, "data"), late["reason"]
        assert summary["per_rank"][1]["data_stall_ms"] == pytest.approx(1000, rel=0.02)
        assert 850 <= summary["stragglers"]["lateness_ms"] <= 1500  # a busy machine delays either rank by itself


def test_another_configuration_may_not_join(start: Callable[..., "Pair"], hosts: Hosts, tmp_path: Path) -> None:
    first = start("passes=[plain]", "launch.join_timeout_s=25")
    first.launchers[1].kill()
    first.launchers[1].wait()
    wait_for(first.run_dir.config.exists, "the first node's configuration")
    other = hosts.command(
        2, sys.executable, "-m", "rankscope.conf.cli", "run", *TINY, "batch_size=3", "launch.nnodes=2",
        "launch.rdzv_endpoint=host1:29511", f"run_dir={first.run_dir.path}",
    )  # fmt: skip
    refused = subprocess.run(other, capture_output=True, text=True, timeout=180)
    assert refused.returncode == 2
    assert "batch_size=3 (the first node: 2)" in refused.stderr
    status, said = first.ended()[0]
    assert status == 2 and "1 of 2 nodes joined" in said and "host1" in said
    first.leaves_nothing()


def test_the_cause_on_one_host_is_named_on_both(start: Callable[..., "Pair"], hosts: Hosts, tmp_path: Path) -> None:
    pair = start("scenario.fault=raise", "scenario.rank=1", "scenario.step=2", "passes=[plain]")
    for status, said in pair.ended():
        assert status == 2
        assert "rank 1: raised" in said and "InjectedFault" in said
    failure = read_json(pair.run_dir.record)["failure"]
    assert (failure["kind"], failure["rank"]) == ("raise", 1)
    assert Path(failure["log"]).exists() and str(pair.run_dir.path) in failure["log"]
    pair.leaves_nothing()


def test_a_killed_agent_ends_both_hosts(start: Callable[..., "Pair"], hosts: Hosts, tmp_path: Path) -> None:
    pair = start(*ENDLESS)
    pair.measuring()
    launcher = psutil.Process(pair.launchers[1].pid)  # the host's shell has become it
    (agent,) = [child for child in launcher.children() if "torch.distributed.run" in " ".join(child.cmdline())]
    agent.send_signal(signal.SIGKILL)
    for status, said in pair.ended():
        assert status == 2 and "SIGKILL" in said
    pair.leaves_nothing()


def test_a_killed_launcher_is_missed_and_replaced(start: Callable[..., "Pair"], hosts: Hosts, tmp_path: Path) -> None:
    """The leader's, which can write nothing any more: its ranks end, the other host names it and ends the run."""
    pair = start(*ENDLESS, "launch.node_timeout_s=5")
    pair.measuring()
    leader = read_json(pair.run_dir.node(0).info)["host"]
    number = int(leader.removeprefix("host"))
    pair.launchers[number - 1].send_signal(signal.SIGKILL)
    status, said = pair.ended()[2 - number]
    assert status == 2 and f"node 0 ({leader}) did not report" in said
    record = read_json(pair.run_dir.record)
    assert (record["status"], record["failure"]["kind"]) == ("failed", "lost_node")
    assert of_run(pair.run_dir.path) == [] and of_run(pair.local) == []


def test_a_cut_link_is_a_stall_of_both(start: Callable[..., "Pair"], hosts: Hosts, tmp_path: Path) -> None:
    pair = start(*ENDLESS, "launch.stall_timeout_s=25")
    pair.measuring()
    hosts.cut()
    for status, said in pair.ended():
        assert status == 2 and ("stall" in said or "no rank made progress" in said)
    pair.leaves_nothing()
