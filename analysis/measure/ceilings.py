"""The ceilings of a node, as `rankscope ceilings` measured them: a file in, rates by kind and size out.

The analysis uses the ceilings of the run's own host, devices and world size if the cache has them, or a given file.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.read.run_settings import rank_infos
from rankscope.conf import RunDir
from rankscope.conf.files import read_json
from rankscope.conf.user_cache import SCHEMA, cache_folder, path_for


class CeilingsError(AnalysisError):
    """A file of ceilings cannot be used. The message says which file and why."""


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    """Measured rates of one node. What was not measured is absent."""

    schema: int = SCHEMA
    host: str | None = None
    device: str | None = None
    backend: str | None = None
    world_size: int = 1
    collectives: dict[str, list[tuple[int, float, float]]] = {}  # kind: [bytes, microseconds, bus bandwidth GB/s]
    h2d_pinned_GBs: float | None = None
    h2d_pageable_GBs: float | None = None
    d2d_GBs: float | None = None  # bytes read and written
    host_GBs: float | None = None  # bytes read and written
    matmul_TFLOPs: dict[str, float] = {}  # by arithmetic: fp32, tf32, bf16, fp16
    launch_us: float | None = None
    measured: str | None = None

    def time_us(self, kind: str, size: float, ranks: int) -> float | None:
        """Return how long a collective of `size` bytes takes on this node, by log-log interpolation of the sizes.

        None for groups of another size than the measured one: they use other links.
        """
        points = self._points(kind, ranks)
        if not points or not points[0][0] <= size <= points[-1][0]:
            return None
        sizes, times = np.array([(size, time) for size, time, _ in points], float).T
        return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(times))))

    def latency_us(self, kind: str, ranks: int) -> float | None:
        """Return how long the smallest measured collective takes; None for groups of another size."""
        points = self._points(kind, ranks)
        return points[0][1] if points else None

    def _points(self, kind: str, ranks: int) -> list[tuple[int, float, float]] | None:
        measured = "sendrecv" if kind in ("send", "recv") else kind
        return self.collectives.get(measured) if ranks == self.world_size else None


def find(path: Path | None, run_dir: RunDir | None) -> Ceilings | None:
    """Return the ceilings in a file; without a file, those of the run's node from the user's cache."""
    if path is not None:
        return load(path)
    return None if run_dir is None else of_run(rank_infos(run_dir), cache_folder())


def load(path: Path) -> Ceilings:
    """Read a file that `rankscope ceilings` wrote. Raises `CeilingsError` if it is not one."""
    try:
        found = msgspec.convert(read_json(path, follow=True), Ceilings)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise CeilingsError(f"{path}: cannot be read as ceilings ({error}); measure them: rankscope ceilings") from None
    if found.schema > SCHEMA:
        raise CeilingsError(f"{path}: schema {found.schema} is newer than this rankscope reads; update it")
    return found


def of_run(infos: list[dict[str, Any]], folder: Path) -> Ceilings | None:
    """Return the cached ceilings for the host, device, backend and world size that the ranks state; None if absent."""
    if not infos or len({info.get("host") for info in infos}) != 1:
        return None
    first = infos[0]
    path = path_for(
        folder, str(first.get("host")), first.get("device_name") or "cpu", str(first.get("backend")), len(infos)
    )
    try:
        return load(path) if path.exists() else None
    except CeilingsError:
        return None  # a broken cache counts as no cache; `rankscope ceilings` measures again
