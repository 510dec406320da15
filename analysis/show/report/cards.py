"""Findings as cards, and the four numbers above them. Input: `summary.json`. Output: plain values for the template."""

from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.analysis.core.json import Json
from rankscope.analysis.explain.findings import rule_of
from rankscope.analysis.show.words import NO_GAIN, byte_size, device_words, ranks_words
from rankscope.conf.trials import Trial

_SECTIONS = {"steps": "steps", "collectives": "collectives", "kernels": "kernels-by-name", "trust": "trust"}
_SHARES = ("share", "_ratio", "of_ceiling")
_NAMED = 8  # items of a list in the evidence


def cards(summary: Json, trials: Sequence[Trial]) -> list[Json]:
    """Return one card for each finding: what, how much, which ranks, where to see it, the evidence, its last trial."""
    of_finding = {trial.finding: trial.sentence for trial in trials}  # the last one counts
    return [_card(finding, summary) | {"tried": of_finding.get(finding["id"])} for finding in summary["findings"]]


def _card(finding: Json, summary: Json) -> Json:
    rule = rule_of(finding["id"])
    seen_in = None if rule is None else rule.seen_in
    step_ms = finding["evidence"].get("step_ms")
    gain = finding["recoverable_ms"]
    return finding | {
        "title": finding["id"].replace("_", " "),
        "share": gain / step_ms if gain is not None and step_ms else None,
        "no_gain": f", {NO_GAIN}" if "replayed_ms" in finding["evidence"] else " of its own",
        "who": ranks_words(finding["ranks"], summary["world_size"]),
        "section": _SECTIONS.get(seen_in or ""),
        "part": None if seen_in is None or seen_in in _SECTIONS else seen_in,
        "facts": [
            (name.replace("_", " "), text)
            for name, value in finding["evidence"].items()
            if (text := _text(name, value))
        ],
    }


def _text(name: str, value: Any) -> str:
    """Return a value of the evidence with its unit, as its key says it; empty for what is unknown or nested."""
    if value is None or isinstance(value, bool):
        return "" if value is None else "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return _number(name, value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(name, item)}" for key, item in list(value.items())[:_NAMED])
    if isinstance(value, Sequence):
        more = f" and {len(value) - _NAMED} more" if len(value) > _NAMED else ""
        return ", ".join(_text(name, item) for item in value[:_NAMED]) + more
    return ""


def _number(name: str, value: float) -> str:
    if name.endswith("_ms"):
        return f"{value:.2f} ms"
    if name.endswith("_us"):
        return f"{value:.2f} us"
    if name.endswith("bytes"):
        return byte_size(int(value))
    if name.endswith(_SHARES):
        return f"{value:.1%}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def four_numbers(summary: Json) -> list[Json]:
    """Return the four numbers at the top: step, throughput, how busy the devices are, and what a fix brings at most."""
    return [_step(summary), _rate(summary), _busy(summary), _gain(summary)]


def _step(summary: Json) -> Json:
    rate = summary["throughput"]
    if rate is None:
        traced = [row["step_ms"] for row in summary["per_rank"] if row["step_ms"] is not None]
        if not traced:
            return {"name": "step", "value": None, "note": "no complete step was recorded"}
        return {"name": "step", "value": f"{sum(traced) / len(traced):.2f} ms", "note": "mean, under the profiler only"}
    return {
        "name": "step, median",
        "value": f"{rate['step_ms_p50']:.2f} ms",
        "note": f"mean {rate['step_ms_mean']:.2f} ms over {rate['steps']} steps without a profiler",
    }


def _rate(summary: Json) -> Json:
    rate = summary["throughput"]
    if rate is None:
        return {"name": "throughput", "value": None, "note": "no steps without a profiler were recorded"}
    mfu = "" if rate["mfu"] is None else f"MFU {rate['mfu']:.1%}"
    if rate["samples_per_s"] is None:
        value = f"{1000 / rate['step_ms_mean']:.1f} steps/s"
        return {"name": "throughput", "value": value, "note": "how many samples a step has is unknown"}
    return {
        "name": "throughput",
        "value": f"{rate['samples_per_s']:.1f} samples/s",
        "note": mfu or "over the mean step",
    }


def _busy(summary: Json) -> Json:
    words = device_words(summary["per_rank"])
    if words:
        head, _, tail = words.removeprefix("Device busy ").partition(" of the step")
        return {
            "name": "device busy",
            "value": head,
            "note": tail.removeprefix(", ") or "of the step under the profiler",
        }
    known = [row for row in summary["per_rank"] if row["step_ms"] and row["breakdown_ms"]["compute"] is not None]
    if not known:
        return {"name": "compute", "value": None, "note": "no complete step was recorded"}
    shares = [row["breakdown_ms"]["compute"] / row["step_ms"] for row in known]
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    value = low if low == high else f"{low.rstrip('%')} to {high}"
    return {"name": "compute", "value": value, "note": "of the step under the profiler"}


def _gain(summary: Json) -> Json:
    """Return the largest gain of one fix: gains of several fixes overlap, so they are not added."""
    known = [item for item in summary["findings"] if item["recoverable_ms"]]
    if not known:
        unknown = any(item["recoverable_ms"] is None for item in summary["findings"])
        note = "a fix is suggested, but its gain is unknown" if unknown else "nothing costs 3 % of a step or more"
        return {"name": "largest gain of one fix", "value": "unknown" if unknown else "none", "note": note}
    best = max(known, key=lambda item: item["recoverable_ms"])
    step_ms = best["evidence"].get("step_ms") or best["evidence"].get("window_ms")
    share = f" ({best['recoverable_ms'] / step_ms:.0%})" if step_ms else ""
    note = best["id"].replace("_", " ")
    return {"name": "largest gain of one fix", "value": f"{best['recoverable_ms']:.2f} ms{share}", "note": note}
