"""The summary as a person reads it in a terminal: `summary.json` in, rich renderables out. Fits 80 columns."""

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Json = dict[str, Any]

_PARTS = (
    ("compute", "compute"),
    ("exposed_transfer", "transfer"),
    ("exposed_wait", "wait"),
    ("copy", "copy"),
    ("data_stall", "data stall"),
    ("host_gap", "host gap"),
)
_CAUSE = {
    "compute": "it computes longer",
    "data": "its loader is slower",
    "host": "it launches later (CPU)",
    "copy": "its copies take longer",
    "earlier_comm": "of earlier collectives",
    "mixed": "of several causes",
}
_WITNESSES = {"torch": "torch.profiler", "nsys": "Nsight Systems"}
PROFILERS = {"torch": "torch.profiler", "light": "its light pass (device only)", "nsys": "Nsight Systems"}
_SHOWN_RANKS = 16
_SHOWN_COLLECTIVES = 6


def show(summary: Json, console: Console) -> None:
    """Print the summary; of a run that was not traced, the throughput and why there is no more."""
    if summary["source"] is None:
        _show_untraced(summary, console)
        return
    console.print(Group(*[part for part in _parts(summary) if part is not None]))


def _show_untraced(summary: Json, console: Console) -> None:
    ranks, rate = summary["world_size"], summary["throughput"]
    console.print(f"{ranks} rank{'s' if ranks > 1 else ''}, {summary['stragglers']['reason']}", markup=False)
    console.print("No step was measured on every rank." if rate is None else rate_words(rate), style="bold")


def _parts(summary: Json) -> list[RenderableType | None]:
    return [
        _headline(summary),
        _hosts(summary),
        _breakdown(summary),
        _collectives(summary),
        _agreement(summary),
        _findings(summary),
        _quality(summary),
        _warnings(summary),
    ]


def verdict_sentence(summary: Json) -> str:
    """Return the verdict in one sentence."""
    found = summary["stragglers"]
    rank, late, of = found["rank"], found["steps_late"], found["steps_judged"]
    if found["verdict"] == "undetermined":
        return f"Late rank: undetermined ({found['reason']})."
    if found["verdict"] == "none":
        return "No rank is late." if summary["world_size"] > 1 else "One rank: nothing to wait for."
    if found["verdict"] == "rotating":
        return f"Ranks take turns at being late ({late} of {of} steps), by {found['lateness_ms']:.2f} ms."
    because = _CAUSE.get(found["cause"], "of an unknown cause")
    host = next((row["host"] for row in slow_hosts(summary) if rank in row["ranks"]), None)
    if host is not None:
        because += f", as all of its host {host} does"
    confirmed = {
        True: "the plain pass shows it too",
        False: "but NOT in the plain pass: an effect of profiling",
        None: "seen under the profiler only",
    }
    return (
        f"Rank {rank} is late in {late} of {of} steps, by {found['lateness_ms']:.2f} ms: {because} "
        f"({confirmed[found['confirmed_by_plain']]})."
    )


def slow_hosts(summary: Json) -> list[Json]:
    """Return the hosts whose every rank is late; a host of one rank is a late rank."""
    return [row for row in summary.get("hosts") or [] if row["late"] and len(row["ranks"]) > 1]


def _hosts(summary: Json) -> RenderableType | None:
    """Return a row for each host, the late ones first."""
    found = sorted(summary.get("hosts") or [], key=lambda row: -row["lateness_ms"])
    if not found:
        return None
    table = Table(title="Hosts, ms (mean over their ranks and steps)", title_justify="left", box=None)
    for name in ("host", "ranks", "step", "compute", "wait", "data stall", "host gap", "late by", "in steps"):
        table.add_column(name, justify="left" if name == "host" else "right")
    for row in found[:_SHOWN_RANKS]:
        times = (_number(row[f"{name}_ms"]) for name in ("step", "compute", "wait", "data_stall", "host_gap"))
        late = _number(row["lateness_ms"]) if row["steps_late"] else "-"
        steps = f"{row['steps_late']} of {row['steps_judged']}"
        table.add_row(row["host"], str(len(row["ranks"])), *times, late, steps, style="bold" if row["late"] else "")
    more = len(found) - _SHOWN_RANKS
    return Group(table, Text(f"and {more} hosts more", "dim")) if more > 0 else table


def _headline(summary: Json) -> RenderableType:
    steps = summary["steps"]
    ranks = summary["world_size"]
    text = Text()
    text.append(f"{ranks} rank{'s' if ranks > 1 else ''}, {len(steps)} analysed step{'s' if len(steps) != 1 else ''}")
    if steps:
        text.append(f" ({steps[0]} to {steps[-1]})" if len(steps) > 1 else f" ({steps[0]})")
    text.append(f", status {summary['status']}\n", "bold" if summary["status"] == "ok" else "bold yellow")
    text.append(verdict_sentence(summary), "bold")
    rate = summary["throughput"]
    if rate:
        text.append(f"\n{rate_words(rate)}")
        for name, title in PROFILERS.items():
            overhead = summary["profiler_overhead"].get(name)
            text.append("" if overhead is None else f"; {slowdown(title, overhead)}")
    for words in (device_words(summary["per_rank"]), memory_words(summary["memory"])):
        text.append(f"\n{words}" if words else "")
    return text


def device_words(rows: list[Json]) -> str:
    """Say how busy the devices were, and how many of their SMs had work; nothing where that is not known."""
    busy, used = (_percent([row[name] for row in rows]) for name in ("gpu_busy_ratio", "sm_efficiency"))
    more = f", its SMs {used} (estimated from launches)" if used else ""
    return f"Device busy {busy} of a step{more}" if busy else ""


def _percent(values: list[float | None]) -> str:
    """Return what known shares span ("98 %", "63 to 93 %"); nothing where one is unknown."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return ""
    low, high = f"{min(known):.0%}".rstrip("%"), f"{max(known):.0%}".rstrip("%")
    return f"{low} %" if low == high else f"{low} to {high} %"


def memory_words(rows: list[Json]) -> str:
    """Say how much memory the rank with the highest peak used; nothing where none was recorded."""
    if not rows:
        return ""
    most = max(rows, key=lambda row: row["peak_bytes"])
    peak, reserved = byte_size(most["peak_bytes"]), byte_size(most["reserved_bytes"])
    return f"Memory: at most {peak} allocated, {reserved} reserved (rank {most['rank']})"


def rate_words(rate: Json) -> str:
    """Say how fast the plain pass was: samples, step, the percentiles of an answer where it was one, MFU."""
    latency = {name.removesuffix("_ms"): value for name, value in (rate.get("latency") or {}).items()}
    known = ", ".join(f"{name} {value:.2f}" for name, value in latency.items() if value is not None)
    answer = f", latency {known} ms" if known else ""
    mfu = "" if rate["mfu"] is None else f", MFU {rate['mfu']:.1%}"
    samples = "" if rate["samples_per_s"] is None else f"{rate['samples_per_s']:.1f} samples/s at "
    return f"Throughput {samples}{rate['step_ms_p50']:.2f} ms a step (plain pass){answer}{mfu}"


def slowdown(profiler: str, ratio: float) -> str:
    """Say what a profiler costs; a step that seems shorter under it is noise."""
    return f"{profiler} makes a step {ratio:.2f} times as long" if ratio > 1 else f"no step is longer under {profiler}"


def _breakdown(summary: Json) -> RenderableType | None:
    rows = summary["per_rank"]
    if not rows:
        return _totals(summary)
    table = Table(title="Where a step's time goes, ms (mean of the analysed steps)", title_justify="left", box=None)
    table.add_column("rank", justify="right")
    table.add_column("step", justify="right")
    for _, title in _PARTS:
        table.add_column(title, justify="right")
    table.add_column("overlap", justify="right")
    for row in rows[:_SHOWN_RANKS]:
        parts = [_number(row["breakdown_ms"][name]) for name, _ in _PARTS]
        overlap = "-" if row["overlap_ratio"] is None else f"{row['overlap_ratio']:.0%}"
        table.add_row(str(row["rank"]), _number(row["step_ms"]), *parts, overlap)
    if len(rows) > _SHOWN_RANKS:
        table.caption = f"{len(rows) - _SHOWN_RANKS} more in summary.json"
    note = Text("transfer and wait: the exposed parts of communication; '?': not known, see below", "dim")
    return Group(Text(), table, note)


def _totals(summary: Json) -> RenderableType:
    table = Table(title="Whole window, ms", title_justify="left", box=None)
    columns = (("compute_us", "compute"), ("comm_us", "comm"), ("exposed_comm_us", "exposed"), ("memory_us", "copy"))
    for title in ("rank", *(title for _, title in columns), "idle", "span"):
        table.add_column(title, justify="right")
    for row in summary["totals"][:_SHOWN_RANKS]:
        values = [row[name] for name, _ in columns] + [row["idle_us"], row["span_us"]]
        table.add_row(str(row["rank"]), *(_number(None if value is None else value / 1000) for value in values))
    return Group(Text(), table)


def _collectives(summary: Json) -> RenderableType | None:
    rows = summary["collectives"]
    if not rows:
        return None
    table = Table(title="Collectives (median ms a call)", title_justify="left", box=None)
    for title in ("kind", "group", "size", "calls", "transfer", "wait", "busbw GB/s", "unmatched"):
        table.add_column(title, justify="left" if title in ("kind", "group") else "right")
    for row in rows[:_SHOWN_COLLECTIVES]:
        size = "?" if row["bytes"] is None else byte_size(row["bytes"])
        busbw = "?" if row["busbw_GBs"] is None else f"{row['busbw_GBs']:.4g}"
        numbers = (_number(row["transfer_ms_p50"]), _number(row["wait_ms_p50"]))
        group = row["group"] or "?"
        table.add_row(row["kind"], group, size, str(row["count"]), *numbers, busbw, str(row["unmatched"] or ""))
    if len(rows) > _SHOWN_COLLECTIVES:
        table.caption = f"{len(rows) - _SHOWN_COLLECTIVES} more in summary.json"
    return Group(Text(), table)


def _agreement(summary: Json) -> RenderableType | None:
    found = summary["agreement"]
    if found is None:
        return None
    table = Table(title="Two witnesses, ms a step", title_justify="left", box=None)
    for title in ("", *_WITNESSES.values(), "difference"):
        table.add_column(title, justify="right" if title else "left")
    for row in found["quantities"]:
        difference = "?" if row["difference"] is None else f"{row['difference']:+.1%}"
        name = row["name"].removesuffix("_ms").replace("_", " ")
        table.add_row(name, _number(row["torch"]), _number(row["nsys"]), difference)
    verdicts = [found["verdict"][name] for name in _WITNESSES]
    said = [item["verdict"] + ("" if item["rank"] is None else f", rank {item['rank']}") for item in verdicts]
    same = {True: "the same", False: "NOT the same", None: "not comparable"}[found["verdict"]["agree"]]
    table.add_row("late rank", *said, same)
    return Group(Text(), table)


def _findings(summary: Json) -> RenderableType | None:
    lines = []
    for finding in summary["findings"]:
        gain = finding["recoverable_ms"]
        colour = {"high": "bold red", "medium": "yellow"}.get(finding["severity"], "default")
        ranks = ", ".join(map(str, finding["ranks"][:8])) + (" ..." if len(finding["ranks"]) > 8 else "")
        text = Text("  ")
        text.append(finding["id"], colour)
        bring = "" if gain is None else f": up to {gain:.2f} ms a step" if gain >= 0.005 else ": nothing"
        text.append(f" (rank {ranks}){bring}")
        lines.append(Group(text, Padding(advice_of(finding), (0, 0, 0, 4))))
    return Group(Text("\nWhat a fix would bring", "italic"), *lines) if lines else None


def advice_of(finding: Json) -> str:
    """Return what to do, and the overrides to try it with."""
    tried = " ".join(finding["overrides"])
    measured = finding["evidence"].get("of_ceiling")
    text: str = finding["advice"]
    if measured is not None:
        size = byte_size(finding["evidence"]["bytes"])
        text += f"; now {measured:.0%} of this node's all-reduce at {size}, bound by {finding['evidence']['bound_by']}"
    same = finding["evidence"].get("same_time_as")
    return text + (f"; try {tried}" if tried else "") + (f" (the same time as {same}: it comes once)" if same else "")


def _quality(summary: Json) -> RenderableType | None:
    clock = summary["alignment"]
    if clock["error_bound_us"] is None:
        return None
    way = {
        "shared_clock": "The ranks share a clock",
        "collective_ends": "One clock by the ends of collectives",
        "probes": "One clock by the recorded clock probes",
    }
    bound = clock["error_bound_us"]
    text = f"\n{way[clock['method']]}; error at most {max(bound, 1):.0f} us"
    if clock["causality_violations"]:
        text += f"; {clock['causality_violations']} collectives break causality on it"
    return Text(text, "dim")


def _warnings(summary: Json) -> RenderableType | None:
    lines = [Padding(Text(line, "yellow"), (0, 0, 0, 2)) for line in warning_lines(summary)]
    return Group(Text("\nWarnings", "italic"), *lines) if lines else None


def warning_lines(summary: Json) -> list[str]:
    """Return one line for each kind of warning: the first of its kind, and how many more there are."""
    kinds: dict[str, list[str]] = {}
    for warning in summary["warnings"]:
        if warning["level"] != "info":
            kinds.setdefault(warning["kind"], []).append(warning["message"])
    return [lines[0] + (f" (and {len(lines) - 1} more like it)" if len(lines) > 1 else "") for lines in kinds.values()]


def byte_size(count: int) -> str:
    """Return a size in decimal units, as bandwidths are: 33.55 MB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"
