"""Writes torch's record of the collectives of a rank that hangs (Flight Recorder), when the launcher asks for it."""

import os
import sys

from rankscope.conf import RankDir


def write_record(rank_dir: RankDir) -> None:
    """Write it, if torch has one. It may be called from any thread: the main one waits inside a collective."""
    if "torch.distributed" not in sys.modules:
        return
    record = _record()
    if record is not None:
        unfinished = rank_dir.flight.with_suffix(".part")
        unfinished.write_bytes(record)
        os.replace(unfinished, rank_dir.flight)


def _record() -> bytes | None:
    """Return torch's record as JSON; None if this torch has none. In older releases NCCL has a recorder of its own."""
    import torch
    import torch.distributed as dist

    module = getattr(torch._C, "_distributed_c10d", None)
    over_nccl = dist.is_initialized() and "nccl" in str(dist.get_backend())
    names = ["_dump_nccl_trace_json"] * over_nccl + ["_dump_fr_trace_json"]
    dump = next((getattr(module, name) for name in names if hasattr(module, name)), None)
    return None if dump is None else bytes(dump())
