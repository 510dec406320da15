"""Lets a rank that hangs write torch's record of its collectives (Flight Recorder), when the launcher asks for it.

The rank's main thread waits inside a collective then, and Python would run no handler. So a thread of our own waits for
a signal that all other threads block. It takes no time until then.
"""

import contextlib
import os
import signal
import sys
import threading

from rankscope.conf import RankDir
from rankscope.conf.contract import DUMP
from rankscope.harness.group.hidden_thread import HiddenThread


def answer_for_dumps(rank_dir: RankDir) -> None:
    """Answer the signal until the process ends. Threads and children that start later inherit the blocked signal."""
    if threading.current_thread() is not threading.main_thread():
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {DUMP})

    def watch() -> None:
        while True:
            signal.sigwait({DUMP})
            with contextlib.suppress(Exception):  # a job must not end because it was asked
                _write(rank_dir)

    HiddenThread(watch).start()


def _write(rank_dir: RankDir) -> None:
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
