"""Checks SLURM: can runs be submitted as jobs from here (`hydra/launcher=slurm`, or srun)."""

import importlib.util
import re
import shutil
import subprocess

from rankscope.launch.doctor.check import Check
from rankscope.launch.system.torch_facts import output_of

_PING_S = 5
_CONTROLLER = re.compile(r"Slurmctld\(\w+\) at (?P<host>\S+) is (?P<state>UP|DOWN)")
_LOGIN = "submit from a login node of the cluster; SLURM_CONF names its configuration"


def check() -> Check:
    """Return one check: programs, version, whether the controller answers, and what else a submission needs."""
    programs = [program for program in ("sbatch", "srun") if shutil.which(program)]
    if not programs:
        fix = "only needed for jobs on a cluster, on its login node"
        return Check(name="SLURM", state="missing", detail="neither sbatch nor srun on PATH", fix=fix)
    version, error = output_of([programs[0], "--version"])
    if version is None:
        return Check(name="SLURM", state="fails", detail=str(error), fix=_LOGIN)
    answer, answers = _controller()
    found = f"{version} ({', '.join(programs)}); {answer}"
    if not answers:
        return Check(name="SLURM", state="fails", detail=found, fix=_LOGIN)
    if "sbatch" not in programs:
        return Check(name="SLURM", state="missing", detail=f"{found}; no sbatch", fix=_LOGIN)
    if importlib.util.find_spec("submitit") is None:
        fix = "pip install 'rankscope[slurm]', or use your own job script (docs/scale.md)"
        return Check(name="SLURM", state="missing", detail=f"{found}; no submitit", fix=fix)
    return Check(name="SLURM", state="works", detail=f"{found}; submitit")


def _controller() -> tuple[str, bool]:
    """Return the result of `scontrol ping`, and whether at least one controller answers."""
    try:
        done = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=_PING_S, check=False)
    except FileNotFoundError:
        return "no scontrol on PATH", False
    except (OSError, subprocess.TimeoutExpired):
        return f"scontrol ping does not end within {_PING_S} s", False
    hosts = {match["host"]: match["state"] for match in _CONTROLLER.finditer(done.stdout)}
    up = [host for host, state in hosts.items() if state == "UP"]
    if up:
        return f"controller {up[0]} is up", True
    if hosts:
        return f"controller {', '.join(hosts)} does not answer", False
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1] if said else f"scontrol ping ended with exit status {done.returncode}", False
