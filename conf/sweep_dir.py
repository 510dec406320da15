"""A sweep's folder: many points, each a run folder, and the record of completed points.

runs/<date>-<time>-<name>/
  sweep.json             overrides, status, and for each point: overrides, baseline or not, status, folder, failure
  points/<id>[-<try>]/   run folders; a resumed point gets a new one, none is overwritten
  slurm/                 for points that were jobs: what was submitted to SLURM, and the jobs' output
  analysis/              report.md report.html summary.json tables/ figures/
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import msgspec

from rankscope.conf.files import read_json, write_json
from rankscope.conf.run_dir import LAYOUT_VERSION, RunDir, RunDirError, Status

MOST_POINTS = 4096  # of a sweep
PointStatus = Status | Literal["pending"]


class PointRecord(msgspec.Struct, kw_only=True):
    """One point of a sweep, as in `sweep.json`."""

    id: str
    overrides: list[str]
    baseline: bool = False  # added by the sweep itself
    status: PointStatus = "pending"
    folder: str | None = None  # under points/
    job: str | None = None  # number of its SLURM job
    failure: dict[str, Any] | None = None


class SweepRecord(msgspec.Struct, kw_only=True):
    """The content of `sweep.json`."""

    layout: int = LAYOUT_VERSION
    overrides: list[str]
    status: PointStatus = "pending"
    start: str | None = None
    end: str | None = None
    points: list[PointRecord]


@dataclass(frozen=True)
class SweepDir:
    """A sweep folder and its paths."""

    path: Path

    @property
    def record(self) -> Path:
        """The points and their status (JSON)."""
        return self.path / "sweep.json"

    @property
    def slurm(self) -> Path:
        """What was submitted to SLURM, and the jobs' output."""
        return self.path / "slurm"

    @property
    def analysis(self) -> Path:
        """The folder that the report writes to."""
        return self.path / "analysis"

    def point(self, folder: str) -> RunDir:
        """Return the run folder of one point. Raises `RunDirError` for a name that points outside the sweep."""
        if Path(folder).name != folder or folder == "..":
            raise RunDirError(f"{self.record}: {folder!r} is not a folder's name under points/")
        return RunDir(self.path / "points" / folder)

    @classmethod
    def claim(cls, parent: Path, name: str, started: datetime) -> "SweepDir":
        """Create a new folder that no other process uses."""
        return cls(RunDir.claim(parent, name, started).path)

    def read(self) -> SweepRecord:
        """Read sweep.json. Raises `RunDirError` if it is missing, broken or of a newer layout."""
        try:
            record = msgspec.convert(read_json(self.record), SweepRecord)
        except (OSError, ValueError, msgspec.ValidationError):
            raise RunDirError(self._no_sweep()) from None
        if any(point.id != Path(point.id).name or point.id in ("", "..") for point in record.points):
            raise RunDirError(f"{self.record}: the id of a point is not a plain name")
        if len(record.points) > MOST_POINTS:
            raise RunDirError(f"{self.record}: {len(record.points)} points are more than {MOST_POINTS}")
        folders = [point.folder for point in record.points if point.folder is not None]
        if len(set(folders)) < len(folders):
            raise RunDirError(f"{self.record}: two points have the same folder")
        if record.layout > LAYOUT_VERSION:
            raise RunDirError(f"{self.record}: layout {record.layout} is newer than this rankscope reads; update it")
        return record

    def _no_sweep(self) -> str:
        """Say why sweep.json cannot be read, and what to do."""
        if not self.path.exists():
            return f"{self.path}: does not exist; give a folder that rankscope run -m made"
        if RunDir(self.path).record.exists():
            return f"{self.path}: a run and no sweep; rankscope analyze shows it"
        return f"{self.record}: not the record of a sweep; give a folder that rankscope run -m made"

    def write(self, record: SweepRecord) -> None:
        """Write sweep.json, completely or not at all."""
        write_json(self.record, msgspec.to_builtins(record))
