"""Runs the work on each rank that needs no other rank: files in, `RankData` out, in several processes if it pays.

A task takes paths and returns the small part of a `RankData`. Its large tables stay on disk, in the cache or in the
traces, and are loaded on demand. If one rank fails, it gets a notice and the others continue.
"""

import os
import re
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from rankscope.analysis.core.heap import return_freed_memory, trim
from rankscope.analysis.core.notices import AnalysisError, Notice, UnreadableTraceError
from rankscope.analysis.core.progress import Progress
from rankscope.analysis.core.table import Table
from rankscope.analysis.options import Options
from rankscope.analysis.rank import cache, light_pass, store
from rankscope.analysis.rank.prepare import prepare
from rankscope.analysis.rank.rank_data import RankData
from rankscope.analysis.rank.step_marks import with_steps
from rankscope.analysis.rank.windows import are_windows
from rankscope.analysis.read import reader as readers
from rankscope.analysis.read.kineto import python_stacks, record_sizes
from rankscope.analysis.read.kineto import reader as kineto
from rankscope.analysis.read.rank_trace import RankTrace, merge_cycles
from rankscope.analysis.read.sources import Source, Sources
from rankscope.conf.user_cache import user_folder

if TYPE_CHECKING:
    from concurrent.futures import Executor

NO_RANK = -1  # the file does not state its rank; the caller finds it
_POOL_FROM = 500 << 20  # bytes of JSON above which starting processes pays
_LARGE_FROM = 300 << 20  # bytes of JSON above which a rank's columns are long
_SCANNER_FROM = 8 << 20  # bytes of JSON above which loading the compiled scanner pays
_COMPILE_FROM = 40 << 20  # bytes of JSON above which compiling it, once a user, pays
_WITH_TABLES = 64  # ranks up to which the large tables of each are cached: reports of more need those of few
_RATIO = 13  # size of JSON divided by its gzip size, roughly
_BASE_MEMORY = 400 << 20  # bytes that a worker needs in addition to its columns
_COLUMNS = 0.35  # bytes of columns per byte of JSON


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's files: one, or those of its profiler cycles."""

    sources: tuple[Source, ...]
    fast: bool = False  # use the accelerated scanner
    cache: Path | None = None  # root folder of the cache
    keep_tables: bool = True  # whether the large tables come back with the result
    cache_tables: bool = True  # whether the cache gets them too

    @property
    def json_bytes(self) -> int:
        """The approximate size of the JSON to read."""
        return sum(_json_bytes(source.path) for source in self.sources)


class Outcome(msgspec.Struct, kw_only=True):
    """The result of a job: a rank, or notices that say why there is none."""

    job: Job
    data: RankData | None = None
    notices: list[Notice] = []
    conflicting: bool = False  # several files that are not cycles of one recording
    kept: bool | None = None  # whether this job could add it to the cache; None if it had nothing to add


def prepare_rank(job: Job) -> Outcome:
    """Read a rank's files and measure what needs no other rank, or take it from the cache."""
    entry = _cache_entry(job)
    data = _cached(job, entry)
    if data is not None:
        return Outcome(job=job, data=data)
    outcome = _prepare(job, entry)
    return outcome if job.keep_tables else _without_large(outcome, entry)


def _kept_or_prepared(job: Job) -> Outcome | str:
    """Do what `prepare_rank` does, but return only the path of the rank's entry if the cache has it.

    For another process: reading an entry takes less time than passing on a rank.
    """
    entry = _cache_entry(job)
    if _cached(job, entry) is not None:
        return str(entry)
    outcome = _prepare(job, entry)
    return str(entry) if outcome.kept else _without_large(outcome, entry)


def _outcome(job: Job, found: Outcome | str) -> Outcome:
    """Return the outcome of a job that another process did. If its entry has gone, the job is done again."""
    if isinstance(found, Outcome):
        return found
    data = _cached(job, Path(found))
    return prepare_rank(job) if data is None else Outcome(job=job, data=data, kept=True)


def _without_large(outcome: Outcome, entry: Path | None) -> Outcome:
    """Return an outcome with the large tables of its rank released."""
    if outcome.data is None:
        return outcome
    data = _cached(outcome.job, entry) if outcome.kept else None
    data = data or store.without_large(outcome.data, _large_again(outcome.job))
    return msgspec.structs.replace(outcome, data=data)


def _prepare(job: Job, entry: Path | None) -> Outcome:
    if job.json_bytes >= _LARGE_FROM:
        return_freed_memory()
    traces, notices = _read(job)
    if not traces or (len(traces) > 1 and not are_windows(traces)):
        return Outcome(job=job, notices=notices, conflicting=bool(traces))
    path = job.sources[0].path
    trace = light_pass.corrected(merge_cycles(traces), path)
    where = python_stacks.where([source.path for source in job.sources], trace.extra)
    data = prepare(msgspec.structs.replace(trace, rank=NO_RANK if trace.rank is None else trace.rank), where)
    if job.json_bytes >= _LARGE_FROM:
        trim()
    saved = None if entry is None or notices else cache.save(entry, data, tables=job.cache_tables)
    return Outcome(job=job, data=data, notices=notices, kept=saved)


def _cache_entry(job: Job) -> Path | None:
    """Return the path of the rank's entry in the cache, existing or not; None if it cannot have one."""
    if job.cache is None:
        return None
    files, labels = [source.path for source in job.sources], [source.label for source in job.sources]
    return cache.entry_of(files, labels, readers.name(job.sources[0], fast=job.fast), job.cache)


def _cached(job: Job, entry: Path | None) -> RankData | None:
    return None if entry is None else cache.load(entry, _large_again(job))


def _large_again(job: Job) -> dict[str, Callable[[], Table]]:
    """Return what makes each large table of a rank again."""
    again = _Again(job)
    return {name: partial(again.table, name) for name in store.LARGE}


def _read(job: Job) -> tuple[list[RankTrace], list[Notice]]:
    """Read every file. A file that gives no numbers becomes a notice, and the others are still read."""
    traces, notices = [], []
    for source in job.sources:
        rank = source.rank if source.rank is not None else source.rank_from_name
        try:
            trace = readers.read(source, fast=job.fast)
            trace = trace if source.nsys else record_sizes.with_sizes(trace, source.path)
            traces.append(with_steps(trace, source.steps))
        except UnreadableTraceError as error:
            if error.notice.kind != "not_a_trace" or source.explicit or rank is not None:
                notices.append(msgspec.structs.replace(error.notice, rank=error.notice.rank or rank))
        except OSError as error:
            text = f"{source.label}: cannot be read ({error.strerror}); check the file and its permissions"
            notices.append(Notice(kind="unreadable", level="partial", file=source.label, message=text))
        except MemoryError:
            text = f"{source.label}: needs more memory than there is; record fewer steps"
            notices.append(Notice(kind="out_of_memory", level="partial", rank=rank, file=source.label, message=text))
    return traces, notices


class _Again:
    """Rebuilds the large tables of a rank from the traces, together: whoever needs one often needs the next one, too.

    Tables that nobody has asked for yet are held until those of another rank are rebuilt.
    """

    _latest: "ClassVar[weakref.ref[_Again] | None]" = None

    def __init__(self, job: Job) -> None:
        self._job = msgspec.structs.replace(job, cache=None, keep_tables=True)
        self._left: dict[str, Table] = {}

    def __reduce__(self) -> Any:
        return _Again, (self._job,)

    def table(self, name: str) -> Table:
        """Return a table. Raises `AnalysisError` if the files no longer give any."""
        kept = self._left.pop(name, None)
        if kept is not None:
            return kept
        latest = None if _Again._latest is None else _Again._latest()
        if latest is not None:
            latest._left.clear()
        data = prepare_rank(self._job).data
        if data is None:
            raise AnalysisError(f"{self._job.sources[0].label}: changed while it was analysed; analyse it again")
        tables: dict[str, Table] = {each: getattr(data, each) for each in store.LARGE}
        wanted = tables.pop(name)
        self._left = tables
        _Again._latest = weakref.ref(self)
        return wanted


# --- the map -------------------------------------------------------------------------------------------------


def jobs(found: Sources, options: Options) -> list[Job]:
    """Return one job per rank, in the order of the files."""
    fast = use_scanner(found.files) if options.fast is None else options.fast
    cached = options.cache_folder or user_folder() if options.cache else None
    by_rank: defaultdict[object, list[Source]] = defaultdict(list)
    for source in found.files:
        by_rank[source.path if source.rank is None else source.rank].append(source)
    tables = len(by_rank) <= _WITH_TABLES
    return [Job(sources=tuple(each), fast=fast, cache=cached, cache_tables=tables) for each in by_rank.values()]


def use_scanner(sources: Sequence[Source]) -> bool:
    """Return whether to use the accelerated scanner: it is installed, and the input is large enough for it to pay."""
    size = sum(_json_bytes(source.path) for source in sources if not source.nsys)
    return kineto.has_scanner() and size >= _SCANNER_FROM and (size >= _COMPILE_FROM or kineto.is_compiled())


def prepare_all(jobs: Sequence[Job], executor: "Executor | None", progress: Progress) -> list[Outcome]:
    """Run all jobs, the largest first, and return their outcomes in the order of `jobs`."""
    sizes = [job.json_bytes for job in jobs]
    progress.begin(len(jobs), sum(sizes))
    if executor is None and (len(jobs) == 1 or sum(sizes) < _POOL_FROM or _workers(sizes) == 1):
        large = sum(sizes) >= _POOL_FROM  # keep only one rank's tables in memory at a time
        with progress:
            outcomes = []
            for job, size in zip(jobs, sizes, strict=True):
                keep_tables = len(jobs) == 1 or not large
                outcomes.append(prepare_rank(msgspec.structs.replace(job, keep_tables=keep_tables)))
                progress.advance(size)
            return outcomes
    from rankscope.analysis.rank import pool  # multiprocessing, which small inputs do not need

    small = [msgspec.structs.replace(job, keep_tables=False) for job in jobs]
    kept = _kept(small) if executor is None else {}
    if any(job.fast for job in jobs) and len(kept) < len(jobs):  # compile once, so that no worker has to
        kineto.warm_up()
    order = sorted(set(range(len(jobs))) - set(kept), key=lambda at: -sizes[at])
    with progress:
        for at in kept:
            progress.advance(sizes[at])
        found = pool.run(
            prepare_rank if executor is not None else _kept_or_prepared,  # Dask's workers may have another cache
            {at: small[at] for at in order},
            executor,
            _workers(sizes),
            killed=_killed,
            ended=lambda at: progress.advance(sizes[at]),
        )
        return [kept[at] if at in kept else _outcome(small[at], found[at]) for at in range(len(jobs))]


def _killed(job: Job) -> Outcome:
    source = job.sources[0]
    text = f"{source.label}: the process that read it was killed, probably out of memory; record fewer steps"
    rank = source.rank if source.rank is not None else source.rank_from_name
    return Outcome(
        job=job, notices=[Notice(kind="reader_killed", level="partial", rank=rank, file=source.label, message=text)]
    )


def _kept(jobs: Sequence[Job]) -> dict[int, Outcome]:
    """Return the outcomes of the jobs that the cache has, by position; nothing if it lacks the first one."""
    kept: dict[int, Outcome] = {}
    for at, job in enumerate(jobs):
        data = _cached(job, _cache_entry(job))
        if data is not None:
            kept[at] = Outcome(job=job, data=data)
        elif at == 0:
            break
    return kept


def _workers(sizes: Sequence[int]) -> int:
    """Return how many processes the cores and the free memory allow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    each = _BASE_MEMORY + int(_COLUMNS * max(sizes, default=0))
    return max(1, min(cores, len(sizes), int(_free_memory() * 0.8) // each))


def _free_memory() -> int:
    """Return the available memory (bytes); if the system does not say, that of a small machine."""
    try:
        found = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        found = None
    return int(found[1]) << 10 if found else 8 << 30


def _json_bytes(path: Path) -> int:
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size * _RATIO if path.suffix == ".gz" else size
