"""Which torch is installed and which GPUs it sees, without importing it; and the output of small commands.

Versions come from torch's version file. Devices need CUDA, so a short subprocess lists them, only if torch was built
for GPUs. This module needs no package of the extra `train`, because `rankscope doctor` must run without them.
"""

import importlib.util
import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

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
    """The installed torch and the GPUs it sees; `version` is None if torch is not installed."""

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    nccl: str | None = None
    devices: tuple[dict[str, Any], ...] = ()
    error: str | None = None  # why the devices are unknown


def torch_facts() -> TorchFacts:
    """Return torch's versions and devices; takes about 5 s if torch was built for GPUs, otherwise no time."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return TorchFacts(error="torch is not installed; pip install 'rankscope[train]'")
    built = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    facts = TorchFacts(version=str(built["__version__"]), cuda=built.get("cuda"), hip=built.get("hip"))
    if facts.cuda is None and facts.hip is None:
        return msgspec.structs.replace(facts, error="this torch was built without CUDA")
    text, error = output_of([sys.executable, "-c", _PROBE], timeout_s=180)
    if text is None:
        return msgspec.structs.replace(facts, error=f"torch cannot list its devices: {error}")
    found = json.loads(text.splitlines()[-1])
    return msgspec.structs.replace(facts, devices=tuple(found["devices"]), nccl=found["nccl"])


def output_of(command: Sequence[str], timeout_s: float = 20.0) -> tuple[str | None, str | None]:
    """Run `command`; returns (output, None), or (None, error)."""
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
