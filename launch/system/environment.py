"""Where a run happens: hosts, devices, versions and the variables that matter, as plain data for environment.json.

What cannot be found is None, with the reason under `reasons`.
"""

import importlib.metadata
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from rankscope.conf import nsys_tool
from rankscope.conf.host import boot_id, host_name
from rankscope.launch.system.torch_facts import TorchFacts, output_of

_PREFIXES = ("NCCL_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "CUDA_", "OMP_", "GLOO_", "SLURM_")
_SECRET = ("TOKEN", "JWT", "KEY", "SECRET", "PASS", "CRED")


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
        "host": host_name(),
        "boot_id": boot_id(),
        "kernel": platform.release(),
        "cpu": {
            "model": cpu_model(),
            "cores": psutil.cpu_count(logical=False),
            "threads": psutil.cpu_count(),
            "usable": usable_cores(),
        },
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": None if smi is None else [gpu for line in smi.splitlines() if (gpu := _gpu(line))],
        "topology": None if smi is None else _plain(ask("topology", ["nvidia-smi", "topo", "-m"])),
        "torch": msgspec.to_builtins(torch),
        "nsys": ask("nsys", [str(nsys_tool.find() or "nsys"), "--version"]),
        "python": platform.python_version(),
        "rankscope": importlib.metadata.version("rankscope"),
        "git_commit": git_commit(),
        "variables": variables(os.environ),
        "reasons": reasons,
    }


def _plain(text: str | None) -> str | None:
    """nvidia-smi underlines its headings even when nobody watches."""
    return None if text is None else re.sub(r"\x1b\[[0-9;]*m", "", text)


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
