"""Runs jobs in several processes, or in the caller's executor. A job whose process dies costs only its own result."""

import gc
import math
import multiprocessing
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from typing import TypeVar

from rankscope.analysis.core.heap import keep_freed_memory

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")
_PARTS = 8  # for each process, at least: then none waits long for the last one
_TOGETHER = 16  # jobs of a part, at most


def run(
    work: Callable[[JobT], ResultT],
    jobs: Mapping[int, JobT],
    executor: Executor | None,
    workers: int,
    *,
    killed: Callable[[JobT], ResultT],
    ended: Callable[[int], None],
) -> dict[int, ResultT]:
    """Start the jobs in their order, and return the results of `work` by key.

    Without an executor, `workers` processes do it. `killed` gives the result of a job whose process dies twice. `ended`
    is called with the key of each job that has ended.
    """
    keys = list(jobs)
    if executor is not None:
        return _collect(work, jobs, [[key] for key in keys], executor, killed, ended)
    # Passing on a job takes some 0.6 ms, so several small ones go together. Each part gets one of the large ones.
    count = max(min(len(keys), workers * _PARTS), math.ceil(len(keys) / _TOGETHER))
    with processes(workers) as pool:  # it starts no process before it gets a job
        return _collect(work, jobs, [keys[first::count] for first in range(count)], pool, killed, ended)


def _collect(
    work: Callable[[JobT], ResultT],
    jobs: Mapping[int, JobT],
    parts: list[list[int]],
    executor: Executor,
    killed: Callable[[JobT], ResultT],
    ended: Callable[[int], None],
) -> dict[int, ResultT]:
    futures: dict[Future[list[ResultT]], list[int]] = {
        executor.submit(_all, work, [jobs[key] for key in part]): part for part in parts
    }
    found: dict[int, ResultT] = {}
    for future in as_completed(futures):
        part = futures[future]
        try:
            found |= zip(part, future.result(), strict=True)
        except Exception as error:  # each executor raises its own class
            if not _worker_died(error):
                raise
            # A broken pool fails every pending future, so each of these jobs runs again in a process of its own.
            found |= {key: _alone(work, jobs[key], killed) for key in part}
        for key in part:
            ended(key)
    return found


def _all(work: Callable[[JobT], ResultT], jobs: list[JobT]) -> list[ResultT]:
    return [work(job) for job in jobs]


def _worker_died(error: Exception) -> bool:
    """Return whether a worker process died. A pool then breaks; Dask gives up a task after several dead workers."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"


def _alone(work: Callable[[JobT], ResultT], job: JobT, killed: Callable[[JobT], ResultT]) -> ResultT:
    try:
        with processes(1) as pool:
            return pool.submit(_all, work, [job]).result()[0]
    except BrokenExecutor:
        return killed(job)


def _begin() -> None:
    keep_freed_memory()
    gc.freeze()  # what was there before the first job is not looked at again and again


def processes(workers: int) -> ProcessPoolExecutor:
    """Start processes. Forking is fast and needs no importable main module, but is safe only with a single thread."""
    method = "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"
    return ProcessPoolExecutor(workers, multiprocessing.get_context(method), initializer=_begin)
