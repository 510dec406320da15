"""A real SLURM of two nodes with accounting: single runs and sweeps as its jobs, and what ends them."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.conf import RunDir
from rankscope.conf.sweep_dir import SweepDir

from .cluster import Cluster, Failed, slurm
from .conftest import TINY, of_run, read_json, wait_for
from .run.hosts import missing

_WHY_NOT = missing()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT)),
]
RUN = (sys.executable, "-m", "rankscope.conf.cli", "run")
PLAIN = (*TINY, "passes=[plain]")
TWO_NODES = ("world_size=2", "launch.nnodes=2")
ONE_RANK = ("world_size=1", "hydra/launcher=slurm")
ENDLESS = ("steps=1000000",)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with slurm(tmp_path_factory.mktemp("slurm")) as found:
            yield found
    except Failed as reason:
        pytest.skip(str(reason))


def train(folder: Path, ranks: int) -> None:
    """Wait until so many ranks that write below a folder take steps."""

    def measuring() -> bool:
        found = [read_json(path)["phase"] for path in folder.rglob("progress.json")]
        return found == ["measure"] * ranks

    wait_for(measuring, "the ranks to train")


def without(program: str, folder: Path) -> str:
    """Return a PATH as it is, but for one program."""
    (folder / "bin").mkdir()
    for place in os.get_exec_path():
        for path in Path(place).glob("*"):
            if path.name != program and not (folder / "bin" / path.name).exists():
                (folder / "bin" / path.name).symlink_to(path)
    return str(folder / "bin")


def test_the_doctor_says_whether_it_answers(cluster: Cluster) -> None:
    code = "from rankscope.launch.doctor.slurm import check; print(check())"
    said = cluster.ask(sys.executable, "-c", code)
    assert "state='works'" in said and "controller host1 is up; submitit" in said


def test_the_same_command_on_each_node_of_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """The script of docs/scale.md: no host and no port is named, the folder's name is the job's number."""
    run = shlex.join([*RUN, *PLAIN, "world_size=2"])
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --exclusive --no-requeue\n"
        f'srun --kill-on-bad-exit=0 {run} launch.nnodes=$SLURM_NNODES "run_dir={tmp_path}/$SLURM_JOB_ID"\n'
    )
    submitted = cluster.run("sbatch", "--wait", "--parsable", f"--output={tmp_path}/out", str(script))
    assert submitted.returncode == 0, (tmp_path / "out").read_text()
    run_dir = RunDir(tmp_path / submitted.stdout.strip())
    assert run_dir.read_record()["status"] == "completed"
    hosts = [read_json(rank.info)["host"] for rank in run_dir.for_pass("plain").ranks()]
    assert sorted(hosts) == ["host1", "host2"]
    assert read_json(run_dir.environment)["variables"]["SLURM_JOB_ID"] == run_dir.path.name


def test_a_sweep_over_two_nodes_with_a_failing_and_a_cancelled_point(cluster: Cluster, tmp_path: Path) -> None:
    """Four points: two baselines on one node, one of them cancelled, and two on two nodes, one of which fails."""
    slurm_options = ("hydra/launcher=slurm", "hydra.launcher.timeout_min=5", "hydra.launcher.cpus_per_task=2")
    faults = ("scenario.fault=none,exit", "scenario.rank=1", "scenario.step=2")
    first = cluster.start(
        *RUN, "-m", *slurm_options, *PLAIN, *TWO_NODES, *faults, "repeats=1", f"runs_dir={tmp_path}"
    )  # fmt: skip
    wait_for(lambda: bool(list(tmp_path.glob("*/sweep.json"))), "the sweep")
    sweep = SweepDir(next(tmp_path.iterdir()))
    wait_for(lambda: all(point.job for point in sweep.read().points), "the jobs")
    cancelled = sweep.read().points[1].job
    assert cancelled is not None
    cluster.run("scancel", cancelled)
    _, said = first.communicate(timeout=300)
    assert first.returncode == 3, said
    points = sweep.read().points
    assert [point.status for point in points] == ["completed", "cancelled", "completed", "failed"], said
    assert points[1].failure == {**(points[1].failure or {}), "kind": "cancelled", "pass": None}
    assert points[3].failure is not None and points[3].failure["kind"] == "exit"
    assert (
        f"SLURM job {cancelled} was cancelled before it began" in said
        and "rank 1: ended itself with exit status" in said
    )

    again = cluster.run(*RUN, "--resume", str(sweep.path))
    assert again.returncode == 3, again.stderr
    points = sweep.read().points
    assert [(point.status, point.folder) for point in points] == [
        ("completed", "000"), ("completed", "001-2"), ("completed", "002"), ("failed", "003-2"),
    ]  # fmt: skip
    hosts = [read_json(rank.info)["host"] for rank in sweep.point("002").for_pass("plain").ranks()]
    assert sorted(hosts) == ["host1", "host2"]
    assert "failed: exit:" in (sweep.analysis / "report.md").read_text()
    assert "Points of the sweep" in again.stdout

    old = sweep.read().points[0].job
    assert old is not None and old not in cluster.ask("squeue", "-h", "-r", "-t", "all", "-o", "%F_%K").split()
    code = f"from rankscope.launch.system import slurm; print(slurm.states([{old!r}])[{old!r}].state)"
    assert cluster.ask(sys.executable, "-c", code) == "COMPLETED"


def test_cancelled_and_given_up(cluster: Cluster, tmp_path: Path) -> None:
    """Of two runs one's job is cancelled by scancel, and seen so without accounting; the other's gets Ctrl-C."""
    folders = {name: RunDir(tmp_path / name) for name in ("cancelled", "given-up")}
    path = {"cancelled": without("sacct", tmp_path), "given-up": os.environ["PATH"]}
    run = (*RUN, *PLAIN, *ONE_RANK, *ENDLESS)
    begun = {
        name: cluster.start("env", f"PATH={path[name]}", *run, f"run_dir={folder.path}", f"name={name}")
        for name, folder in folders.items()
    }
    for folder in folders.values():
        train(folder.path, ranks=1)
    cluster.run("scancel", "--name=cancelled")
    begun["given-up"].send_signal(signal.SIGINT)
    said = {name: process.communicate(timeout=180)[1] for name, process in begun.items()}
    assert begun["cancelled"].returncode == 2, said
    assert "was cancelled" in said["cancelled"]
    assert ["SLURM has no accounting here" in said[name] for name in folders] == [True, False]
    assert begun["given-up"].returncode == 130, said
    assert folders["cancelled"].read_record()["status"] == "cancelled"
    assert folders["given-up"].read_record()["status"] == "interrupted"
    wait_for(lambda: all(of_run(folder.path) == [] for folder in folders.values()), "the ranks to end")
    cluster.wait_idle(2)


def test_what_slurm_refuses_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    refused = cluster.run(*RUN, *PLAIN, *ONE_RANK, "hydra.launcher.partition=none", f"run_dir={folder.path}")
    assert refused.returncode == 2
    assert "SLURM refuses the job" in refused.stderr and "partition" in refused.stderr.splitlines()[-1]
    assert folder.read_record()["status"] == "failed"


def test_a_node_is_lost(cluster: Cluster, tmp_path: Path) -> None:
    folder = RunDir(tmp_path / "run")
    local = f"launch.local_dir={tmp_path}/local"
    run = cluster.start(*RUN, *PLAIN, *TWO_NODES, *ENDLESS, "hydra/launcher=slurm", f"run_dir={folder.path}", local)
    train(tmp_path / "local", ranks=2)
    cluster.hosts.cut()
    try:
        _, said = run.communicate(timeout=180)
    finally:
        cluster.hosts.mend()
    assert run.returncode == 2, said
    assert "lost a node" in said and "host2" in said
    failure = folder.read_record()["failure"]
    assert failure["kind"] == "node_fail"
    cluster.wait_idle(2)
    wait_for(lambda: of_run(folder.path) == [], "the ranks to end")
