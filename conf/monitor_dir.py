"""The folder of a watched run; the only module that knows its paths.

<name>/<date>-<time>-watch/
  monitor.json                      ranks, hosts, settings
  events.jsonl                      one line per event, written at once
  capture.json                      a request for a window that rank 0 has not taken yet
  ranks/<rank>/steps-<first>.jsonl  one line per step, written as soon as the device has passed it
  ranks/<rank>/steps-<first>.parquet   the same, if a part is full or the run is over
  ranks/<rank>/stats.jsonl          percentiles and means of a rolling window, one line every few steps
  windows/<step>/ranks/<rank>/      traces of a window, in the layout of a pass: `rankscope analyze` reads it
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rankscope.conf.run_dir import PassDir, RunDir

MOST_CAPTURED = 1000  # steps of one window


@dataclass(frozen=True)
class MonitorRankDir:
    """The files of one rank."""

    path: Path

    def part(self, first: int) -> Path:
        """Return the file of the steps from `first` on."""
        return self.path / f"steps-{first:09d}.jsonl"

    def parts(self) -> list[Path]:
        """Return every part in the order of steps; complete parts are Parquet."""
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
        """Ranks, hosts and settings of the watch (JSON)."""
        return self.path / "monitor.json"

    @property
    def events(self) -> Path:
        """Events (JSON lines)."""
        return self.path / "events.jsonl"

    @property
    def request(self) -> Path:
        """A request for a window, by `rankscope capture` (JSON); rank 0 takes it."""
        return self.path / "capture.json"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def rank(self, rank: int) -> MonitorRankDir:
        return MonitorRankDir(self.path / "ranks" / str(rank))

    def ranks(self) -> dict[int, MonitorRankDir]:
        """Return the ranks that have a folder, in numerical order."""
        found = (path for path in (self.path / "ranks").glob("*") if path.name.isdecimal())
        return {int(path.name): MonitorRankDir(path) for path in sorted(found, key=lambda path: int(path.name))}

    def window(self, step: int) -> PassDir:
        """Return the traces of the window that opened at a step."""
        return PassDir(self.path / "windows" / str(step))

    @classmethod
    def claim(cls, parent: Path, started: datetime) -> "MonitorDir":
        """Create a new folder that no other process uses."""
        return cls(RunDir.claim(parent, "watch", started).path)
