"""Words for rank.json: who a rank is, and what ended it."""

import os
import platform
from typing import Any

import torch

from rankscope.harness.group.process_group import RankContext


def one_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def describe(context: RankContext) -> dict[str, Any]:
    """Return the identity of this rank for rank.json."""
    properties: Any = torch.cuda.get_device_properties(context.device) if context.cuda else None
    return {
        "rank": context.rank,
        "local_rank": context.local_rank,
        "world_size": context.world_size,
        "host": context.host,
        "boot_id": context.boot_id,
        "pid": os.getpid(),
        "device": str(context.device),
        "device_name": properties.name if properties else None,
        "device_uuid": f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else None,  # as nvidia-smi prints it
        "backend": context.backend,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if context.cuda else None,
        "threads": torch.get_num_threads(),
        "affinity": sorted(os.sched_getaffinity(0)),
    }
