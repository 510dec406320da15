"""Describes where a run happens: host, devices, versions and relevant variables, as data for environment.json.

A value that cannot be found is None, with the reason under `reasons`.
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
    """Return the content of environment.json for this host; `torch` is the result of `torch_facts`."""
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
    """Remove underlining, which nvidia-smi writes even without a terminal."""
    return None if text is None else re.sub(r"\x1b\[[0-9;]*m", "", text)


def git_commit() -> str | None:
    """Return the commit of the working folder, or None."""
    return output_of(["git", "rev-parse", "HEAD"])[0]


def variables(source: Any) -> dict[str, str]:
    """Return the variables that influence training: those with known prefixes, and never a secret."""
    return {
        name: value
        for name, value in sorted(source.items())
        if name.startswith(_PREFIXES) and not any(word in name for word in _SECRET)
    }


def usable_cores() -> int:
    """Return the number of physical cores that this process may use, limited by its affinity."""
    return min(psutil.cpu_count(logical=False) or 1, len(os.sched_getaffinity(0)))


def cpu_model() -> str | None:
    """Return the name of the processor, or None if /proc/cpuinfo has none (as on some architectures)."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _gpu(line: str) -> dict[str, str]:
    names = ("index", "name", "uuid", "memory", "driver", "pcie_generation", "clock_max")
    return dict(zip(names, (part.strip() for part in line.split(",")), strict=False))
