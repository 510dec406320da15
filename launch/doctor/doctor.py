"""`rankscope doctor`: checks what is installed, what works, what is missing, and prints how to get it.

Out: a table or JSON. The exit status is 0 if the main job can run on this machine, at least on CPU, otherwise 2.
"""

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rankscope.conf import command
from rankscope.conf.contract import NO_NUMBERS, OK
from rankscope.launch.doctor import nsys as nsys_doctor
from rankscope.launch.doctor import slurm as slurm_doctor
from rankscope.launch.doctor.check import Check
from rankscope.launch.system import ncu_tool
from rankscope.launch.system.torch_facts import TorchFacts, output_of, torch_facts

_STYLES = {"works": "green", "missing": "yellow", "fails": "red"}
_LIBRARIES = ("msgspec", "numpy", "pandas", "pyarrow", "matplotlib", "jinja2", "rich", "isal")
_TRAINING = ("hydra-core", "psutil", "nvtx", "pillow")
_GLOO_LIMIT_S = 90
_NCU_FIX = "install NVIDIA Nsight Compute (apt: nsight-compute)"
_GLOO = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
dist.destroy_process_group()
raise SystemExit(0 if value.item() == 2 else 1)
"""


@click.command("rankscope doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
@click.option("--runs-dir", default="runs", show_default=True, type=click.Path(path_type=Path), help="Where runs go.")
def doctor(as_json: bool, runs_dir: Path) -> int:
    """Say what is installed, what works, what is missing and how to get it.

    The exit status is 0 if the main job can run on this machine, at least on CPU, otherwise 2.
    """
    checks = diagnose(runs_dir)
    able = all(check.state == "works" for check in checks if check.needed)
    if as_json:
        print(json.dumps({"able": able, "checks": msgspec.to_builtins(checks)}, indent=1))
    else:
        _show(checks, able)
    return OK if able else NO_NUMBERS


def main(argv: Sequence[str]) -> int:
    """Print the checks; returns 0 if the main job can run here, otherwise 2."""
    return command.run_command(doctor, argv, known=(), hint="give another --runs-dir", prefix="rankscope doctor")


def diagnose(runs_dir: Path) -> list[Check]:
    """Run every check.

    The all-reduce between two ranks takes about 5 s, finding the GPUs another 5 s, the test of nsys 10 s (if
    installed), and the controller of SLURM up to 5 s (if installed).
    """
    facts = torch_facts()
    return [
        _python(),
        _packages("analysis", _LIBRARIES, "pip install rankscope"),
        _packages("training", _TRAINING, "pip install 'rankscope[train]'"),
        _torch(facts),
        _gloo(facts),
        _gpus(facts),
        _nccl(facts),
        _driver(),
        *nsys_doctor.checks(),
        _tool(str(ncu_tool.find() or "ncu"), "Nsight Compute, for single kernels", _NCU_FIX),
        slurm_doctor.check(),
        _writable(runs_dir),
        _disk(runs_dir),
        _shared_memory(),
        _clock(),
    ]


def _python() -> Check:
    known = sys.version_info >= (3, 11)
    return Check(
        name="Python",
        state="works" if known else "fails",
        detail=f"{platform.python_version()}, {len(os.sched_getaffinity(0))} usable cores",
        fix=None if known else "install Python 3.11 or newer",
        needed=True,
    )


def _packages(name: str, packages: Sequence[str], fix: str) -> Check:
    missing = [package for package in packages if _version(package) is None]
    if missing:
        return Check(name=f"{name} libraries", state="missing", detail=", ".join(missing), fix=fix, needed=True)
    found = ", ".join(f"{package} {_version(package)}" for package in packages)
    return Check(name=f"{name} libraries", state="works", detail=found, needed=True)


def _torch(facts: TorchFacts) -> Check:
    if facts.version is None:
        return Check(
            name="torch", state="missing", detail="no torch", fix="pip install 'rankscope[train]'", needed=True
        )
    built = f"CUDA {facts.cuda}" if facts.cuda else f"ROCm {facts.hip}" if facts.hip else "CPU only"
    return Check(name="torch", state="works", detail=f"{facts.version}, {built}", needed=True)


def _gloo(facts: TorchFacts) -> Check:
    """Start two ranks with torchrun, which sum one number."""
    name = "2 ranks, gloo all-reduce"
    if facts.version is None or _version("psutil") is None:
        return Check(
            name=name,
            state="missing",
            detail="needs torch, psutil",
            fix="pip install 'rankscope[train]'",
            needed=True,
        )
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        error = _all_reduce(Path(folder))
    if error is None:
        return Check(name=name, state="works", detail=f"in {time.monotonic() - begun:.1f} s", needed=True)
    fix = "check that the host's name resolves (/etc/hosts), or set GLOO_SOCKET_IFNAME=lo"
    return Check(name=name, state="fails", detail=error, fix=fix, needed=True)


def _all_reduce(folder: Path) -> str | None:
    """Run the two ranks; returns the error, or None."""
    from rankscope.launch.system import processes  # needs psutil, which may be missing

    script, log = folder / "all_reduce.py", folder / "log"
    script.write_text(_GLOO)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=0"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", processes.MARK: processes.mark(folder)}
    with log.open("wb") as stream:
        agent = processes.start(
            [*torchrun, *rendezvous, str(script)], environment, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        status = agent.wait(_GLOO_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"did not end within {_GLOO_LIMIT_S} s"
    finally:
        processes.end(agent, folder, grace_s=5)
    said = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    return None if status == 0 else said[0].strip() if said else f"exit status {status}"


def _gpus(facts: TorchFacts) -> Check:
    if facts.devices:
        names = sorted({str(device["name"]) for device in facts.devices})
        return Check(name="GPUs", state="works", detail=f"{len(facts.devices)} x {', '.join(names)}")
    detail = facts.error or "torch was built for GPUs but sees none"
    return Check(name="GPUs", state="missing", detail=detail, fix="device=cpu works; GPUs need a CUDA build of torch")


def _nccl(facts: TorchFacts) -> Check:
    if facts.nccl:
        return Check(name="NCCL", state="works", detail=facts.nccl)
    return Check(name="NCCL", state="missing", detail="none in this torch", fix="comes with a CUDA build of torch")


def _driver() -> Check:
    text, error = output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    if text is None:
        fix = "install the NVIDIA driver (apt: nvidia-driver-*, nvidia-utils-*)"
        return Check(name="driver, nvidia-smi", state="missing", detail=str(error), fix=fix)
    return Check(name="driver, nvidia-smi", state="works", detail=text.splitlines()[0])


def _tool(program: str, what: str, fix: str) -> Check:
    text, error = output_of([program, "--version"])
    name = Path(program).name
    if text is None:
        return Check(name=name, state="missing", detail=f"{error} ({what})", fix=fix)
    return Check(name=name, state="works", detail=text.splitlines()[-1])


def _writable(runs_dir: Path) -> Check:
    target = _existing(runs_dir)
    able = os.access(target, os.W_OK | os.X_OK)
    fix = None if able else "run in a folder that you may write, or give runs_dir=..."
    detail = f"{runs_dir} can{'' if able else 'not'} be written"
    return Check(name="run folders", state="works" if able else "fails", detail=detail, fix=fix, needed=True)


def _disk(runs_dir: Path) -> Check:
    free = shutil.disk_usage(_existing(runs_dir)).free / 2**30
    enough = free >= 1
    fix = None if enough else "free some space, or give runs_dir=... on another disk"
    return Check(name="disk", state="works" if enough else "fails", detail=f"{free:.1f} GiB free", fix=fix, needed=True)


def _shared_memory() -> Check:
    """Check /dev/shm, through which loader workers pass batches; the default 64 MiB of a container are soon full."""
    path = Path("/dev/shm")
    if not path.is_dir():
        return Check(name="/dev/shm", state="missing", detail="no such folder", fix="use num_workers=0")
    free = shutil.disk_usage(path).free / 2**20
    if free < 512:
        fix = "start the container with --shm-size=8g, or use num_workers=0"
        return Check(name="/dev/shm", state="fails", detail=f"{free:.0f} MiB free", fix=fix)
    return Check(name="/dev/shm", state="works", detail=f"{free:.0f} MiB free")


def _clock() -> Check:
    path = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    source = path.read_text().strip() if path.exists() else "unknown"
    if source in ("hpet", "acpi_pm"):
        fix = "boot with clocksource=tsc: each reading of this clock takes microseconds"
        return Check(name="clock source", state="fails", detail=source, fix=fix)
    return Check(name="clock source", state="works", detail=source)


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _show(checks: list[Check], able: bool) -> None:
    table = Table(title="rankscope doctor", title_justify="left", show_edge=False)
    for column in ("what", "state", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for check in checks:
        style = _STYLES[check.state]
        table.add_row(check.name, f"[{style}]{check.state}[/]", escape(check.detail), escape(check.fix or ""))
    console = Console()
    console.print(table)
    verdict = "The main job can run on this machine." if able else "The main job cannot run here yet: see 'what to do'."
    console.print(f"\n{verdict}")
