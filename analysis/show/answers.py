"""What a program asks of a recording: verdict, findings with bounds, and what the recording cannot tell, with reasons.

Input: a summary (docs/summary.schema.json). Output: `Answers`, as `rankscope explain --json` and the MCP server give
them.
"""

from typing import Any, Literal

import msgspec

from rankscope.analysis.core.json import Json
from rankscope.analysis.show.words import verdict_sentence

About = Literal["late_rank", "waits", "steps", "throughput", "profiler_overhead", "gain", "mfu", "sm_efficiency"]
# Notices that explain why a kind of number is unknown, the most telling first.
_REASONS: dict[About, tuple[str, ...]] = {
    "waits": (
        "missing_rank", "truncated", "groups_unknown", "unaligned_rank", "unmatched_collectives", "ranks_left_out",
        "independent_ranks",
    ),
    "steps": ("no_analysed_steps", "no_steps", "not_traced", "partial_step"),
    "throughput": ("no_plain_pass", "recording"),
    "profiler_overhead": ("no_plain_pass", "not_traced", "recording"),
    "mfu": ("unknown_gpu_peak", "no_plain_pass"),
    "sm_efficiency": ("no_sm_efficiency",),
}  # fmt: skip
_NO_BOUND = "the recording sets no bound to what a fix would save"
_UNSAID = "the recording does not say why"


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the recording cannot tell."""

    about: About
    of: str | None = None  # for a gain: the finding
    reason: str
    kind: str | None = None  # the kind of the notice that is the reason


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """What a fix saves at most; null if unknown."""

    at_most_ms: float | None
    of_step_ms: float | None
    share: float | None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One finding."""

    id: str
    severity: str
    ranks: list[int]
    gain: Gain
    evidence: dict[str, Any]
    advice: str
    overrides: list[str]


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What is known, and what is not."""

    schema: int = 1
    status: str
    run: dict[str, str]
    sentence: str  # the verdict in words
    verdict: str
    late_ranks: list[int]
    cause: str | None
    lateness_ms: float | None
    lateness_interval_ms: list[float] | None
    window: str  # plain: steps without a profiler; trace: profiled steps
    step_ms: float | None  # the median plain step, otherwise the traced one
    findings: list[Answer]
    cannot_tell: list[Unknown]


def answers_of(summary: Json) -> Answers:
    """Return the answers of a complete summary."""
    found = summary["stragglers"]
    rate = summary["throughput"] or {}
    traced = [row["step_ms"] for row in summary["per_rank"] if row["step_ms"] is not None]
    return Answers(
        status=summary["status"],
        run=summary["run"],
        sentence=verdict_sentence(summary),
        verdict=found["verdict"],
        late_ranks=found["ranks"],
        cause=found["cause"],
        lateness_ms=found["lateness_ms"],
        lateness_interval_ms=found["lateness_interval_ms"],
        window=found["window"],
        step_ms=rate.get("step_ms_p50") or (max(traced) if traced else None),
        findings=[_answer(item) for item in summary["findings"]],
        cannot_tell=_unknowns(summary),
    )


def _answer(item: Json) -> Answer:
    gain = item["recoverable_ms"]
    step = item["evidence"].get("step_ms", item["evidence"].get("window_ms"))
    share = gain / step if gain is not None and step else None
    bound = Gain(at_most_ms=gain, of_step_ms=step, share=None if share is None else round(share, 6))
    kept = {name: item[name] for name in ("id", "severity", "ranks", "evidence", "advice", "overrides")}
    return Answer(**kept, gain=bound)


def _unknowns(summary: Json) -> list[Unknown]:
    """Return everything that is null although it was asked, each with the reason that a notice gives."""
    found: list[Unknown] = []
    verdict = summary["stragglers"]
    if verdict["verdict"] == "undetermined":
        found.append(Unknown(about="late_rank", reason=verdict["reason"] or _UNSAID))
    rows = summary["per_rank"]
    rate = summary["throughput"]
    untold: dict[About, bool] = {
        "steps": not summary["steps"],
        "waits": summary["world_size"] > 1 and any(row["exposed_wait_ms"] is None for row in rows),
        "throughput": rate is None,
        "profiler_overhead": all(value is None for value in summary["profiler_overhead"].values()),
        "mfu": rate is not None and rate["mfu"] is None,
        "sm_efficiency": any(row["gpu_busy_ratio"] is not None and row["sm_efficiency"] is None for row in rows),
    }
    for about, unknown in untold.items():
        if unknown:
            kind, reason = _reason(summary, about)
            found.append(Unknown(about=about, reason=reason, kind=kind))
    found += [
        Unknown(about="gain", of=item["id"], reason=_NO_BOUND)
        for item in summary["findings"]
        if item["recoverable_ms"] is None
    ]
    return found


def _reason(summary: Json, about: About) -> tuple[str | None, str]:
    """Return kind and text of the notice that explains it."""
    by_kind = {notice["kind"]: notice["message"] for notice in reversed(summary["warnings"])}
    for kind in _REASONS[about]:
        if kind in by_kind:
            return kind, by_kind[kind]
    if about == "waits" and summary["missing_ranks"]:
        return "missing_rank", f"ranks {', '.join(map(str, summary['missing_ranks']))} are missing"
    return None, _UNSAID
