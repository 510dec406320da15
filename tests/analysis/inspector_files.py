"""Writes files of NCCL Inspector for a job whose arrivals and transfers are known.

The layout is that of NVIDIA/nccl, plugins/profiler/inspector/inspector_json.cc (format v4.0).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def line(
    rank: int,
    number: int,
    us: float,
    *,
    of: int,
    kind: str = "AllReduce",
    size: int = 1 << 20,
    group: str = "0xa1",
    process: int | None = None,
    timing: str | None = "kernel_gpu",
) -> dict[str, Any]:
    """Return the record of one rank; Inspector rounds down to whole microseconds."""
    perf = {"coll": kind, "coll_sn": number, "coll_msg_size_bytes": size, "coll_exec_time_us": int(us)}
    if timing is not None:
        perf["coll_timing_source"] = timing
    return {
        "header": {"id": group, "comm_name": "unknown", "rank": rank, "n_ranks": of, "nnodes": 1},
        "metadata": {
            "inspector_output_format_version": "v4.0",
            "git_rev": "",
            "rec_mechanism": "nccl_profiler_interface",
            "dump_timestamp_us": 1_800_000_000_000_000 + number,
            "hostname": "node0",
            "pid": 100 + (rank if process is None else process),
        },
        "coll_perf": perf | {"coll_algobw_gbs": 1.5, "coll_busbw_gbs": "nan"},
    }


def durations(arrivals_us: Sequence[float], transfer_us: float) -> list[float]:
    """Return what each rank's kernel takes: until the last rank has come, and the transfer."""
    return [max(arrivals_us) - own + transfer_us for own in arrivals_us]


def write(folder: Path, lines: Mapping[int, Sequence[dict[str, Any]]]) -> Path:
    """Write a file per process, under the name that the plugin gives it."""
    folder.mkdir(parents=True, exist_ok=True)
    for process, own in lines.items():
        text = "".join(json.dumps(item) + "\n" for item in own)
        (folder / f"node0-pid{100 + process}.log").write_text(text)
    return folder
