"""`Options`: what can be set about an analysis."""

from pathlib import Path
from typing import Any

import msgspec

from rankscope.analysis.core.limits import Limits


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What can be set about an analysis."""

    limits: Limits = Limits()
    borrow_sizes: bool = True  # of a run's nsys pass: collectives' sizes from the torch pass, where it has none
    cache: bool = True  # keep what was found of each rank in the user's cache folder, and use what is there
    cache_folder: Path | None = None  # keep it there instead
    fast: bool | None = None  # read with the accelerated scanner; None: where it is installed and pays
    only_ranks: frozenset[int] | None = None  # read and analyse these alone; waits need every rank of a group
    only_steps: tuple[int | None, int | None] | None = None  # analyse steps from the first to the second, inclusive
    executor: Any = None  # concurrent.futures.Executor for the work per rank; None: processes where they pay
    progress: bool = False  # show a progress bar on a terminal
    ceilings: Path | None = None  # what the node can do; None: of a run, where `rankscope ceilings` has measured it
    nsys_steps: str | None = None  # name or regular expression of the NVTX ranges that are steps; None: recognised
