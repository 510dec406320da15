"""What a watched run finds."""

from typing import Any

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something found after step `step`; `since` is the first step that shows it."""

    event: str  # late_rank, recovered, speed_changed
    step: int
    since: int
    rank: int | None = None
    cause: str | None = None
    cause_share: dict[str, float] = {}
    lateness_ms: float | None = None
    before_ms: float | None = None
    after_ms: float | None = None

    def text(self) -> str:
        if self.event == "late_rank":
            return (
                f"step {self.step}: rank {self.rank} is late by {self.lateness_ms:.2f} ms a step since step "
                f"{self.since}, cause: {self.cause}"
            )
        if self.event == "recovered":
            return f"step {self.step}: rank {self.rank} is no longer late"
        assert self.before_ms is not None and self.after_ms is not None
        return (
            f"step {self.step}: a step takes {self.after_ms:.2f} ms instead of {self.before_ms:.2f} since about step "
            f"{self.since}"
        )

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in msgspec.to_builtins(self).items() if value not in (None, {})}
