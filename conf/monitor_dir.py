"""The folder of a watched run: the one place that knows every path in it.

<name>/<date>-<time>-watch/
  monitor.json                      who watched: ranks, hosts, settings
  events.jsonl                      what was noticed, a line each, written at once
  ranks/<rank>/steps-<first>.jsonl  a line a step, written as soon as the device is past it
  ranks/<rank>/steps-<first>.parquet   the same when a part is full, or the run is over
  ranks/<rank>/stats.jsonl          percentiles and means of a rolling window, a line every few steps
  windows/<step>/ranks/<rank>/      traces of a window, laid out as a pass: `rankscope analyze` reads it
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rankscope.conf.run_dir import PassDir, RunDir


@dataclass(frozen=True)
class MonitorRankDir:
    """The files of one rank."""

    path: Path

    def part(self, first: int) -> Path:
        """The lines of the steps from `first` on."""
        return self.path / f"steps-{first:09d}.jsonl"

    def parts(self) -> list[Path]:
        """Every part, Parquet where it is whole, in the order of steps."""
        return sorted(path for path in self.path.glob("steps-*") if path.suffix in (".jsonl", ".parquet"))

    @property
    def stats(self) -> Path:
        """Percentiles of a rolling window (JSON lines)."""
        return self.path / "stats.jsonl"


@dataclass(frozen=True)
class MonitorDir:
    """The folder of one watched run."""

    path: Path

    @property
    def info(self) -> Path:
        """Who watched (JSON)."""
        return self.path / "monitor.json"

    @property
    def events(self) -> Path:
        """What was noticed (JSON lines)."""
        return self.path / "events.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's log folder."""
        return self.path / "tensorboard"

    def rank(self, rank: int) -> MonitorRankDir:
        """The folder of one rank."""
        return MonitorRankDir(self.path / "ranks" / str(rank))

    def ranks(self) -> dict[int, MonitorRankDir]:
        """The ranks that have a folder."""
        found = (path for path in (self.path / "ranks").glob("*") if path.name.isdecimal())
        return {int(path.name): MonitorRankDir(path) for path in sorted(found, key=lambda path: int(path.name))}

    def window(self, step: int) -> PassDir:
        """The traces of the window that opened at a step."""
        return PassDir(self.path / "windows" / str(step))

    @classmethod
    def claim(cls, parent: Path, started: datetime) -> "MonitorDir":
        """Create a folder that nobody else has."""
        return cls(RunDir.claim(parent, "watch", started).path)
