"""One rank of a job that hangs on purpose: `hang_job.py CASE RANK WORLD FOLDER FORM`.

It leaves its dump and its stacks in the folder. gloo ends a process whose message has another size than expected, so
ranks with different calls leave as soon as they have enqueued them.
"""

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["TORCH_FR_BUFFER_SIZE"] = "2000"

import torch
import torch.distributed as dist

CASE, RANK, WORLD, FOLDER, FORM = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]


def leave() -> None:
    recorder: Any = torch._C._distributed_c10d
    content = recorder._dump_fr_trace_json() if FORM == "json" else recorder._dump_fr_trace()
    (FOLDER / f"fr_rank_{RANK}").write_bytes(content)
    with (FOLDER / f"stack_{RANK}.txt").open("w") as file:
        faulthandler.dump_traceback(file)
    os._exit(0)


def wait_for_all() -> None:
    """Wait until the first calls of every rank are done: a rank that leaves earlier would break them."""
    while not all((FOLDER / f"ready_{rank}").exists() for rank in range(WORLD)):
        time.sleep(0.05)


def leave_when_stuck() -> None:
    wait_for_all()
    time.sleep(2)
    leave()


def wait_for_a_batch() -> None:
    time.sleep(60)


def reduce(elements: int, group: Any = None) -> Any:
    return dist.all_reduce(torch.ones(elements), group=group, async_op=True)


def broadcast(elements: int) -> Any:
    return dist.broadcast(torch.ones(elements), 0, async_op=True)


def work(first: Any, second: Any) -> None:
    for _ in range(3):
        reduce(10).wait()
    (FOLDER / f"ready_{RANK}").touch()
    wait_for_all()
    if CASE == "loader" and RANK == 1:
        wait_for_a_batch()
    if CASE == "crashed" and RANK == 1:
        os._exit(0)
    if CASE in ("order", "sizes"):
        time.sleep(0 if RANK == 1 else 1)
        first_call, second_call = (broadcast, reduce) if CASE == "order" and RANK == 1 else (reduce, broadcast)
        elements = 20 if CASE == "sizes" and RANK == 1 else 10
        kept = [first_call(elements), second_call(elements)]
        leave()
        del kept
    if CASE == "groups":  # each waits in the group that the other has not called yet
        for group in (first, second) if RANK == 0 else (second, first):
            reduce(10, group).wait()
    reduce(10).wait()
    broadcast(10).wait()


def main() -> None:
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=WORLD)
    first, second = dist.new_group(list(range(WORLD))), dist.new_group(list(range(WORLD)))
    if not (CASE == "crashed" and RANK == 1):
        threading.Thread(target=leave_when_stuck, daemon=True).start()
    try:
        work(first, second)
    except RuntimeError:
        pass  # gloo notices some mismatches
    time.sleep(60)


if __name__ == "__main__":
    main()
