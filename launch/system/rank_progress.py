"""Reads the progress of the ranks while a pass runs, and shows it: a bar, or lines without a terminal."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rankscope.conf import PassDir
from rankscope.conf.contract import EXPORT, STAGES
from rankscope.conf.terminal import Terminal
from rankscope.launch.system.terminal import may_be_gone


class RankProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress.json of one rank: `step` of `of` in `phase`, its pid, and the time of writing (Unix seconds).

    `alone` are steps that it made while other ranks made none. `batches` came from any loader of a script. `backwards`
    went by in a script in which no step is found. `stacks`: it answers the signal that asks for stacks.
    """

    phase: str
    step: int = 0
    of: int = 0
    pid: int = 0
    time: float = 0.0
    alone: int = 0
    batches: int = 0
    backwards: int = 0
    stacks: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """How far the rank is, for comparison with other ranks."""
        return next((place for place, stage in enumerate(STAGES) if stage == self.phase), -1), self.step


def read_progress(pass_dir: PassDir) -> dict[int, RankProgress]:
    """Return the last progress of each rank that has a readable file."""
    found = {rank.rank: _read(rank.progress) for rank in pass_dir.ranks()}
    return {rank: progress for rank, progress in found.items() if progress is not None}


def stand_still(before: Mapping[int, RankProgress], now: Mapping[int, RankProgress]) -> bool:
    """Whether no rank made progress."""
    return _places(before) == _places(now)


def _places(ranks: Mapping[int, RankProgress]) -> dict[int, tuple[tuple[int, int], bool, int]]:
    """Return how far each rank is. Only its first step alone is progress: such steps are never recorded."""
    return {rank: (said.place, said.alone > 0, said.batches) for rank, said in ranks.items()}


def _read(path: Path) -> RankProgress | None:
    try:
        return msgspec.convert(json.loads(path.read_text()), RankProgress, strict=False)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return None


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


_EXPORT_S = 10.0  # from one line about an export to the next, without a terminal


class Display:
    """Shows the progress of the slowest rank on stderr.

    Only `update` draws the bar: a thread that draws would make starting processes unsafe.
    """

    def __init__(self, passes: Sequence[PassDir], world_size: int) -> None:
        self._name, self._world_size, self._passes = passes[0].name, world_size, passes
        self._console = Terminal(stderr=True)
        self._phase: str | None = None
        self._since = self._told = 0.0  # when the phase began, and when a line last said so
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, auto_refresh=False)
        self._task = self._bar.add_task(f"{self._name}: starting {_ranks(world_size)}", total=None)

    def __enter__(self) -> Self:
        with may_be_gone():
            if self._console.is_terminal:
                self._bar.start()
            else:
                self.say(f"{self._name}: starting {_ranks(self._world_size)}")
        return self

    def __exit__(self, *error: object) -> None:
        with may_be_gone():
            if self._console.is_terminal:
                self._bar.stop()

    def update(self, ranks: dict[int, RankProgress]) -> None:
        """Show the state of the rank that is furthest behind."""
        if len(ranks) < self._world_size:
            slowest = None
        else:
            slowest = min(ranks.values(), key=lambda rank: rank.place)
        if self._console.is_terminal:
            with may_be_gone():
                self._draw(slowest)
        elif slowest is not None:
            self._tell(slowest.phase)

    def _draw(self, slowest: RankProgress | None) -> None:
        if slowest is not None:
            total = slowest.of or None
            description = f"{self._name}: {slowest.phase}{self._exported(slowest.phase)}"
            self._bar.update(self._task, description=description, completed=slowest.step, total=total)
        self._bar.refresh()

    def _tell(self, phase: str) -> None:
        """Print a line for a new phase, and again for an export that takes long."""
        now = time.monotonic()
        if phase != self._phase:
            self._phase, self._since, self._told = phase, now, now
            self.say(f"{self._name}: {phase}")
        elif phase == EXPORT and now - self._told >= _EXPORT_S:
            self._told = now
            self.say(f"{self._name}: {phase}{self._exported(phase)} after {now - self._since:.0f} s")

    def _exported(self, phase: str) -> str:
        """Say how much of their traces the ranks have written."""
        if phase != EXPORT:
            return ""
        return f", {exported_bytes(self._passes) / 1e6:.0f} MB written"

    def say(self, text: str) -> None:
        """Print a line."""
        with may_be_gone():
            self._console.print(text, highlight=False)


def exported_bytes(passes: Sequence[PassDir]) -> int:
    """Return the size of what the ranks have written of their traces."""
    return sum(_size(file) for pass_dir in passes for file in pass_dir.path.glob("ranks/*/*trace*.json*"))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # a rank has just renamed it
        return 0
