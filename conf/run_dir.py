"""The run folder; the only module that knows its paths, how a run claims it and how its status is recorded.

runs/<date>-<time>-<name>/
  run.json  config.yaml  environment.json  launcher.log
  passes/<pass>/torchrun/          raw streams and error.json of each rank, in torchrun's layout
  passes/<pass>/ranks/<rank>/      rank.json  steps.parquet  trace.json.gz  worker.log ...
  analysis/                        written only by the analysis; can be deleted and made again
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast

from rankscope.conf.contract import PassName
from rankscope.conf.files import write_json
from rankscope.conf.typed_json import read_object

LAYOUT_VERSION = 1
# Values of run.json that have another type are left out: a run folder may come from anybody.
_RECORDED: dict[str, Any] = {
    "layout": int,
    "overrides": list[str], "failure": dict[str, Any] | None, "passes": dict[str, str], "status": str,
    "start": str | None, "end": str | None,
}  # fmt: skip

_RANK_DIGITS = 8  # folder names with this many digits or more are not ranks

Status = Literal["submitted", "running", "completed", "failed", "interrupted", "cancelled"]


class RunDirError(Exception):
    """A run folder that cannot be claimed or read."""


@dataclass(frozen=True)
class RankDir:
    """The files of one rank in one pass."""

    path: Path

    @property
    def rank(self) -> int:
        return int(self.path.name)

    @property
    def info(self) -> Path:
        """The rank's identity and counts: rank, host, device, clock probes, counts, peak memory (JSON)."""
        return self.path / "rank.json"

    @property
    def steps(self) -> Path:
        """One row per step (Parquet)."""
        return self.path / "steps.parquet"

    @property
    def trace(self) -> Path:
        """torch.profiler's Chrome trace of the first active window."""
        return self.cycle_trace(0)

    def cycle_trace(self, cycle: int) -> Path:
        """Return torch.profiler's Chrome trace of one active window; each cycle of `profile.repeat` has its own."""
        return self.path / (f"trace.{cycle}.json.gz" if cycle else "trace.json.gz")

    def tensorboard(self, trace: Path) -> Path:
        """Return the path of a trace for TensorBoard's plugin, in one folder with those of the other ranks."""
        cycle = trace.name.removesuffix(".json.gz").removeprefix("trace").lstrip(".") or "0"
        return self.path.parent.parent / "tensorboard" / f"rank{self.rank}.{cycle}.pt.trace.json.gz"

    @property
    def nsys_report(self) -> Path:
        """Nsight Systems' report of the nsys pass."""
        return self.path / "nsys.nsys-rep"

    @property
    def nsys_export(self) -> Path:
        """The report as SQLite, which the analysis reads."""
        return self.path / "nsys.sqlite"

    @property
    def calls(self) -> Path:
        """The timed collectives of the timed window."""
        return self.path / "calls.json"

    @property
    def slow_steps(self) -> Path:
        """Where the main thread was while a step lasted too long."""
        return self.path / "slow_steps.json"

    @property
    def key_averages(self) -> Path:
        """torch.profiler's `key_averages` (Parquet); a text version is next to it with the suffix .txt."""
        return self.path / "key_averages.parquet"

    @property
    def stacks(self) -> Path:
        """Collapsed stacks by self device time, if stacks were recorded."""
        return self.path / "stacks.txt"

    @property
    def progress(self) -> Path:
        """Phase, step and pid of a running rank (JSON), rewritten at most twice a second."""
        return self.path / "progress.json"

    @property
    def stack(self) -> Path:
        """Python stacks of all threads of the rank, appended each time they are asked for; empty if they never were."""
        return self.path / "stack.txt"

    @property
    def flight(self) -> Path:
        """torch's record of the rank's last collectives (Flight Recorder, JSON), written if the pass stalls."""
        return self.path / "flight.json"

    @property
    def log(self) -> Path:
        return self.path / "worker.log"


@dataclass(frozen=True)
class PassDir:
    """The files of one pass."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def hang(self) -> Path:
        """What `rankscope hang` says of a pass that stalled."""
        return self.path / "hang.json"

    @property
    def kind(self) -> PassName:
        """The pass's name without the number of the repeat."""
        return cast(PassName, self.name.partition("-")[0])

    @property
    def torchrun(self) -> Path:
        """torchrun's log folder: `<id>/attempt_0/<local rank>/{stdout.log,stderr.log,error.json}`."""
        return self.path / "torchrun"

    @property
    def agent_log(self) -> Path:
        """torchrun's own output, including its report of failed ranks."""
        return self.torchrun / "agent.log"

    @property
    def turn(self) -> Path:
        """An empty file; it exists if rank 0 holds the lock of `launch.turn`."""
        return self.path / "turn"

    def rank(self, rank: int) -> RankDir:
        """Return the folder of one rank; its name is not padded."""
        return RankDir(self.path / "ranks" / str(rank))

    def ranks(self) -> list[RankDir]:
        """Return the ranks that have a folder, in numerical order."""
        found = (folder for folder in (self.path / "ranks").glob("*") if folder.name.isdecimal())
        ranks = [RankDir(folder) for folder in found if len(folder.name) < _RANK_DIGITS]
        return sorted(ranks, key=lambda item: item.rank)


@dataclass(frozen=True)
class NodeDir:
    """What one launcher of a run on several nodes tells the others."""

    path: Path

    @property
    def info(self) -> Path:
        """The node: host, boot id, devices, versions, variables (JSON), as in environment.json."""
        return self.path / "node.json"

    def said(self, stage: str) -> Path:
        """Return the file with how a stage (`join`, or a pass) ended on this node (JSON)."""
        return self.path / f"{stage}.json"


@dataclass(frozen=True)
class RunDir:
    """A run folder and its paths."""

    path: Path

    @property
    def record(self) -> Path:
        """Layout version, status, overrides, start, end (JSON)."""
        return self.path / "run.json"

    @property
    def config(self) -> Path:
        """The resolved configuration; ranks read only this file."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """Hosts, devices, versions and relevant variables (JSON)."""
        return self.path / "environment.json"

    @property
    def log(self) -> Path:
        return self.path / "launcher.log"

    @property
    def trials(self) -> Path:
        """What `rankscope try` measured: a list with one entry per trial (JSON)."""
        return self.path / "trials.json"

    @property
    def trial_runs(self) -> Path:
        """The run folders of trials."""
        return self.path / "trials"

    @property
    def analysis(self) -> Path:
        return self.path / "analysis"

    def node(self, number: int) -> NodeDir:
        """Return the folder of one launcher; 0 is the first."""
        return NodeDir(self.path / "nodes" / str(number))

    @property
    def slurm(self) -> Path:
        """For a submitted run: what was submitted to SLURM, and the job's output."""
        return self.path / "slurm"

    @property
    def ncu(self) -> Path:
        """The folder of the job that `rankscope ncu` runs: its configuration and its rank's files."""
        return self.path / "ncu"

    def for_pass(self, name: str) -> PassDir:
        return PassDir(self.path / "passes" / name)

    @property
    def detailed(self) -> PassDir:
        """The pass that has shapes, memory and modules: `detail` if it has traces, otherwise `torch`."""
        detail = self.for_pass("detail")
        return detail if any(rank.trace.exists() for rank in detail.ranks()) else self.for_pass("torch")

    def repeats(self, name: str) -> list[PassDir]:
        """Return the existing folders of a pass and its repeats (`plain`, `plain-2`, ...), in order."""
        found = (self.path / "passes").glob(f"{name}*")
        mine = [PassDir(path) for path in found if PassDir(path).kind == name]
        return sorted(mine, key=lambda item: (len(item.name), item.name))

    @classmethod
    def claim(cls, parent: Path, name: str, started: datetime, exact: Path | None = None) -> "RunDir":
        """Create a folder that no other process uses: `exact`, or a new one named by date, time and `name`.

        `mkdir` without `exist_ok` is the lock: if two launches start in one second, the second gets a number.
        """
        if exact is not None:
            exact.parent.mkdir(parents=True, exist_ok=True)
            try:
                exact.mkdir()
            except FileExistsError:
                if not cls(exact)._take_over():
                    raise RunDirError(
                        f"{exact}: exists already; a run never overwrites a folder, set another run_dir"
                    ) from None
            return cls(exact)
        parent.mkdir(parents=True, exist_ok=True)
        stem = f"{started:%Y%m%d-%H%M%S}-{name}"
        for number in range(1, 1000):
            path = parent / (stem if number == 1 else f"{stem}-{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return cls(path)
        raise RunDirError(f"{parent / stem}: a thousand runs started in this second; set another name")

    def hand_over(self) -> None:
        """Allow one other process to claim this folder: the first that passes it as `exact`."""
        self._handed.touch()

    def _take_over(self) -> bool:
        try:
            self._handed.unlink()  # the lock: only one of two processes succeeds
        except FileNotFoundError:
            return False
        return True

    @property
    def _handed(self) -> Path:
        return self.path / ".handed-over"

    def read_record(self) -> dict[str, Any]:
        """Read run.json. Raises `RunDirError` if it is missing, broken or of a newer layout."""
        try:
            record = read_object(self.record, _RECORDED)
            version = record["layout"]
            newer = version > LAYOUT_VERSION
        except (OSError, ValueError, KeyError, TypeError):
            raise RunDirError(f"{self.record}: not a rankscope run record; give a run folder") from None
        if newer:
            raise RunDirError(
                f"{self.record}: layout {version} is newer than this rankscope reads ({LAYOUT_VERSION}); update it"
            )
        return record

    def check_links(self) -> None:
        """Raise `RunDirError` if a link leads out of the folder: it may show files of whoever reads a foreign run."""
        root = os.path.realpath(self.path)
        for part in ("passes", "passes/*", "passes/*/ranks", "passes/*/ranks/*", "passes/*/ranks/*/*"):
            for path in self.path.glob(part):
                if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                    raise RunDirError(f"{path}: a link out of the run folder; copy here what it leads to")

    def write_record(self, **changes: Any) -> None:
        """Merge `changes` into run.json."""
        record = self.read_record() if self.record.exists() else {"layout": LAYOUT_VERSION}
        write_json(self.record, record | changes)

    def finish(self, status: Status, **details: Any) -> None:
        """Write the final status and the end time."""
        self.write_record(status=status, end=datetime.now(UTC).isoformat(), **details)
