"""Trials of a finding's advice: what `rankscope try` measured and the report shows. They are in trials.json."""

import statistics

import msgspec

from rankscope.conf.files import read_json, write_json
from rankscope.conf.run_dir import RunDir


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One measured promise; ms per step, medians of steps without a profiler."""

    finding: str
    overrides: list[str]
    promised_ms: float | None
    before_ms: list[float]
    after_ms: list[float]
    brought_ms: float  # mean over the pairs
    least_ms: float  # of a pair
    most_ms: float
    measured: str  # UTC, ISO 8601
    also: list[str] = []  # further overrides of every run of the trial

    @property
    def sentence(self) -> str:
        """What was promised and what the trial brought, with the range over its pairs."""
        promised = "an unknown gain" if self.promised_ms is None else f"at most {self.promised_ms:.2f} ms"
        usual = statistics.median(self.before_ms) if self.before_ms else 0.0
        told = f"{self.finding}: promised {promised}, brought {self.brought_ms:.2f} of {usual:.2f} ms per step"
        told += f" ({self.least_ms:.2f} to {self.most_ms:.2f} in {len(self.before_ms)} pairs)"
        told += f", with {' '.join(self.also)}" if self.also else ""
        if self.least_ms <= 0 <= self.most_ms:
            return f"{told}: no more than noise"
        return told if self.brought_ms > 0 else f"{told}: the step became longer"


def read_trials(run_dir: RunDir) -> list[Trial]:
    """Return the trials of a run; none if there is no file of them that can be read."""
    try:
        return msgspec.convert(read_json(run_dir.trials), list[Trial])
    except (OSError, ValueError):
        return []


def add_trial(run_dir: RunDir, found: Trial) -> None:
    """Add a trial to those of a run; an unreadable file is replaced."""
    write_json(run_dir.trials, msgspec.to_builtins([*read_trials(run_dir), found]))
