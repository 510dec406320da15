"""`Options`: the settings of an analysis."""

from pathlib import Path
from typing import Any

import msgspec

from rankscope.analysis.core.limits import Limits


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an analysis; the defaults suit a run folder."""

    limits: Limits = Limits()
    borrow_sizes: bool = True  # if the nsys pass has no sizes of collectives, take those of the torch pass
    cache: bool = True  # use and fill the user's cache of results per rank
    cache_folder: Path | None = None  # use this cache folder instead
    fast: bool | None = (
        None  # read with the accelerated scanner; None: if it is installed and the files are large enough
    )
    only_ranks: frozenset[int] | None = None  # read only these; waits need every rank of a group
    only_steps: tuple[int | None, int | None] | None = (
        None  # analyse only steps from the first to the second, inclusive
    )
    executor: Any = None  # concurrent.futures.Executor for the work per rank; None: processes if they save time
    progress: bool = False  # show a progress bar on a terminal
    ceilings: Path | None = None  # file of `rankscope ceilings`; None: the one of the run's node, if there is one
    steps_from: str | None = None  # name or regular expression of the ranges that are steps; None: find them
