"""Where a run happens: hosts, devices, versions and the variables that matter, as plain data for environment.json.

Nothing here imports torch. Versions come from torch's version file; devices need CUDA, so a short subprocess is
asked, and only where torch was built for GPUs. What cannot be found is None, with the reason under `reasons`.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

_PREFIXES = ("NCCL_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "CUDA_", "OMP_", "GLOO_", "SLURM_")
_SECRET = ("TOKEN", "JWT", "KEY", "SECRET", "PASS", "CRED")

_PROBE = """
import json, torch
devices = []
for index in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(index)
    uuid = getattr(p, "uuid", None)
    devices.append({"name": p.name, "uuid": None if uuid is None else str(uuid), "memory_bytes": p.total_memory,
                    "capability": [p.major, p.minor]})
nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
print(json.dumps({"devices": devices, "nccl": nccl}))
"""


class TorchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What torch is here and which GPUs it sees; `version` is None where torch is not installed."""

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    nccl: str | None = None
    devices: tuple[dict[str, Any], ...] = ()
    error: str | None = None  # why devices could not be asked for


def torch_facts() -> TorchFacts:
    """Ask for torch's versions and devices; about 5 s where torch was built for GPUs, else at once."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return TorchFacts(error="torch is not installed; pip install 'rankscope[train]'")
    built = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    facts = TorchFacts(version=str(built["__version__"]), cuda=built.get("cuda"), hip=built.get("hip"))
    if facts.cuda is None and facts.hip is None:
        return msgspec.structs.replace(facts, error="this torch was built without CUDA")
    text, error = output_of([sys.executable, "-c", _PROBE], timeout_s=180)
    if text is None:
        return msgspec.structs.replace(facts, error=f"torch cannot be asked for devices: {error}")
    found = json.loads(text.splitlines()[-1])
    return msgspec.structs.replace(facts, devices=tuple(found["devices"]), nccl=found["nccl"])


def environment(torch: TorchFacts) -> dict[str, Any]:
    """Return the content of environment.json for this host; `torch` as `torch_facts` found it."""
    reasons: dict[str, str] = {}

    def ask(key: str, command: Sequence[str]) -> str | None:
        text, error = output_of(command)
        if error is not None:
            reasons[key] = error
        return text

    query = "--query-gpu=index,name,uuid,memory.total,driver_version,pcie.link.gen.current,clocks.max.sm"
    smi = ask("gpus", ["nvidia-smi", query, "--format=csv,noheader"])
    if torch.error is not None:
        reasons["torch"] = torch.error
    return {
        "host": socket.gethostname(),
        "boot_id": _first_line(Path("/proc/sys/kernel/random/boot_id")),
        "kernel": platform.release(),
        "cpu": {
            "model": cpu_model(),
            "cores": psutil.cpu_count(logical=False),
            "threads": psutil.cpu_count(),
            "usable": usable_cores(),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": None if smi is None else [gpu for line in smi.splitlines() if (gpu := _gpu(line))],
        "topology": None if smi is None else ask("topology", ["nvidia-smi", "topo", "-m"]),
        "torch": msgspec.to_builtins(torch),
        "nsys": ask("nsys", ["nsys", "--version"]),
        "python": platform.python_version(),
        "rankscope": importlib.metadata.version("rankscope"),
        "git_commit": git_commit(),
        "variables": variables(os.environ),
        "reasons": reasons,
    }


def git_commit() -> str | None:
    """Return the commit of the working folder, or None where there is none."""
    return output_of(["git", "rev-parse", "HEAD"])[0]


def variables(source: Any) -> dict[str, str]:
    """Pick the variables that change how training runs: listed prefixes only, and never a secret."""
    return {
        name: value
        for name, value in sorted(source.items())
        if name.startswith(_PREFIXES) and not any(word in name for word in _SECRET)
    }


def usable_cores() -> int:
    """Cores that this process may use: physical ones, no more than its affinity allows."""
    return min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))


def output_of(command: Sequence[str], timeout_s: float = 20.0) -> tuple[str | None, str | None]:
    """Run `command`; returns (its output, None) or (None, why there is none)."""
    if shutil.which(command[0]) is None:
        return None, f"{command[0]} is not on PATH"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        return None, said[-1] if said else f"{command[0]} ended with exit status {done.returncode}"
    return done.stdout.strip(), None


def cpu_model() -> str | None:
    """The processor's name, or None where /proc/cpuinfo has none (not every architecture does)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _gpu(line: str) -> dict[str, str]:
    names = ("index", "name", "uuid", "memory", "driver", "pcie_generation", "clock_max")
    return dict(zip(names, (part.strip() for part in line.split(",")), strict=False))


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
