"""Runs jobs in several processes, or in the caller's executor. A job whose process dies costs only its own result."""

import multiprocessing
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from typing import TypeVar

from rankscope.analysis.core.heap import keep_freed_memory

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")


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
    if executor is not None:
        return _collect(work, jobs, executor, killed, ended)
    with processes(workers) as pool:  # it starts no process before it gets a job
        return _collect(work, jobs, pool, killed, ended)


def _collect(
    work: Callable[[JobT], ResultT],
    jobs: Mapping[int, JobT],
    executor: Executor,
    killed: Callable[[JobT], ResultT],
    ended: Callable[[int], None],
) -> dict[int, ResultT]:
    futures: dict[Future[ResultT], int] = {executor.submit(work, job): at for at, job in jobs.items()}
    found: dict[int, ResultT] = {}
    for future in as_completed(futures):
        at = futures[future]
        try:
            found[at] = future.result()
        except Exception as error:  # each executor raises its own class
            if not _worker_died(error):
                raise
            # A broken pool fails every pending future, so each of these jobs runs again in a process of its own.
            found[at] = _alone(work, jobs[at], killed)
        ended(at)
    return found


def _worker_died(error: Exception) -> bool:
    """Return whether a worker process died. A pool then breaks; Dask gives up a task after several dead workers."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"


def _alone(work: Callable[[JobT], ResultT], job: JobT, killed: Callable[[JobT], ResultT]) -> ResultT:
    try:
        with processes(1) as pool:
            return pool.submit(work, job).result()
    except BrokenExecutor:
        return killed(job)


def processes(workers: int) -> ProcessPoolExecutor:
    """Start processes. Forking is fast and needs no importable main module, but is safe only with a single thread."""
    method = "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"
    return ProcessPoolExecutor(workers, multiprocessing.get_context(method), initializer=keep_freed_memory)
