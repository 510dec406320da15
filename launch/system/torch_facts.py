"""What torch is installed here and which GPUs it sees, without importing it; and the output of small commands.

Versions come from torch's own version file. Devices need CUDA, so a short subprocess is asked, and only where torch
was built for GPUs. Needs no package of the extra `train`: the doctor must run without them.
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
