"""Prints the summary in a terminal of 80 columns or more. Input: `summary.json`. Output: rich renderables."""

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rankscope.analysis.core.json import Json
from rankscope.analysis.show.words import (
    advice_of,
    byte_size,
    clock_words,
    device_words,
    gain_words,
    memory_words,
    per_words,
    ranks_words,
    rare_words,
    rate_words,
    recorded_words,
    run_words,
    slow_words,
    slowdowns,
    unsplit_words,
    verdict_sentence,
    warning_lines,
    worth_dimensions,
)

_PARTS = (
    ("compute", "compute"),
    ("exposed_transfer", "transfer"),
    ("exposed_wait", "wait"),
    ("copy", "copy"),
    ("data_stall", "data stall"),
    ("host_gap", "host gap"),
)
_SEVERITY = {"high": "bold red", "medium": "yellow"}
_WITNESSES = {"torch": "torch.profiler", "nsys": "Nsight Systems"}
_TABLE_WIDTH = 80
_SHOWN_RANKS = 16
_SHOWN_COLLECTIVES = 6
_SHOWN_PIPELINES = 2
_UNEVEN = 1.05  # of all-to-all, what the fullest rank receives over the mean


class Whole:
    """A table that a narrow terminal does not shorten: it may break a line, but every number can be read."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from console.render(self._table, options.update(width=max(_TABLE_WIDTH, options.max_width)))


def show(summary: Json, console: Console, *, brief: bool = False) -> None:
    """Print the summary; `brief`: only the verdict and the findings, in a line each.

    For a run without traces it has only the verdict, throughput, findings and warnings.
    """
    if brief:
        console.print(Group(_headline(summary), *_brief_findings(summary)))
        return
    untraced = summary["source"] is None
    parts = [_headline(summary), _findings(summary), _warnings(summary)] if untraced else _parts(summary)
    console.print(Group(*[part for part in parts if part is not None]), crop=False)


def _parts(summary: Json) -> list[RenderableType | None]:
    return [
        _headline(summary),
        _hosts(summary),
        _breakdown(summary),
        _devices(summary),
        _dimensions(summary),
        *[_pipeline(pipeline) for pipeline in summary["pipelines"][:_SHOWN_PIPELINES]],
        _collectives(summary),
        _agreement(summary),
        _findings(summary),
        _quality(summary),
        _warnings(summary),
    ]


def _brief_findings(summary: Json) -> list[RenderableType]:
    """Return a line for each finding above low, the costliest first."""
    found = [item for item in summary["findings"] if item["severity"] != "low"]
    if not found:
        return [Text("Findings above low: none.")]
    lines = []
    for item in found:
        who, gain = ranks_words(item["ranks"], summary["world_size"]), gain_words(item, per_words(summary))
        lines.append(Text(f"Finding: {item['id'].replace('_', ' ')} ({item['severity']}), {who}{gain}."))
    return list(lines)


def _hosts(summary: Json) -> RenderableType | None:
    """Return a table with one row per host, the latest host first."""
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
    return Group(Whole(table), Text(f"and {more} more hosts", "dim")) if more > 0 else Whole(table)


def _headline(summary: Json) -> RenderableType:
    """Say what was run, which rank is late, and how fast the job is."""
    run, recorded = run_words(summary), recorded_words(summary)
    text = Text(f"{run}\n" if run else "")
    text.append(recorded, "" if summary["status"] == "ok" else "yellow")
    text.append(f"\n\n{verdict_sentence(summary)}", "bold")
    slow = slow_words(summary)
    text.append(f"\n{slow}" if slow else "", "bold")
    rare = rare_words(summary)
    text.append(f"\n{rare}" if rare else "")
    rate = rate_words(summary)
    if rate:
        text.append("\n" + "; ".join([rate, *slowdowns(summary)]))
    for words in (device_words(summary["per_rank"]), memory_words(summary["memory"])):
        text.append(f"\n{words}" if words else "")
    return text


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
    note = Text("transfer and wait: the exposed parts of communication", "dim")
    known = all(row["breakdown_ms"][name] is not None for row in rows[:_SHOWN_RANKS] for name, _ in _PARTS)
    note.append("" if known else "; '?': unknown, see below")
    note.append(unsplit_words(rows[:_SHOWN_RANKS]))
    return Group(Text(), Whole(table), note)


def _devices(summary: Json) -> RenderableType | None:
    """Return a table of the devices beside the one that stands for its rank."""
    rows = summary["devices"]
    if not rows:
        return None
    table = Table(title="Further devices of a rank's process, whole window, ms", title_justify="left", box=None)
    columns = ("compute", "comm", "exposed_comm", "copy", "idle", "span")
    for title in ("rank", "device", *columns):
        table.add_column(title.replace("_", " "), justify="right")
    for row in rows[:_SHOWN_RANKS]:
        table.add_row(str(row["rank"]), str(row["device"]), *(_number(row[f"{name}_ms"]) for name in columns))
    return Group(Text(), Whole(table))


def _totals(summary: Json) -> RenderableType:
    table = Table(title="Whole window, ms", title_justify="left", box=None)
    columns = (("compute_us", "compute"), ("comm_us", "comm"), ("exposed_comm_us", "exposed"), ("memory_us", "copy"))
    for title in ("rank", *(title for _, title in columns), "idle", "span"):
        table.add_column(title, justify="right")
    for row in summary["totals"][:_SHOWN_RANKS]:
        values = [row[name] for name, _ in columns] + [row["idle_us"], row["span_us"]]
        table.add_row(str(row["rank"]), *(_number(None if value is None else value / 1000) for value in values))
    return Group(Text(), Whole(table))


def _dimensions(summary: Json) -> RenderableType | None:
    """Return the communication by dimension, if the job has more than data parallelism."""
    rows = summary["dimensions"]
    if not worth_dimensions(rows):
        return None
    table = Table(title="Communication by dimension, ms per step and rank", title_justify="left", box=None)
    for title in ("dimension", "kinds", "calls", "transfer", "wait", "exposed", "last rank"):
        table.add_column(title, justify="left" if title in ("dimension", "kinds") else "right")
    for row in rows[:_SHOWN_COLLECTIVES]:
        last = "-" if row["last_rank"] is None else f"{row['last_rank']} ({row['last_share']:.0%})"
        numbers = (_number(row[name]) for name in ("transfer_ms", "wait_ms", "exposed_ms"))
        table.add_row(row["dimension"], ", ".join(row["kinds"]), f"{row['calls_per_step']:.1f}", *numbers, last)
    notes = [Text("last rank: the one that most often arrives last, and how often", "dim")]
    for row in rows[:_SHOWN_COLLECTIVES]:
        if row["uneven"] is not None and row["uneven"] >= _UNEVEN:
            who = "" if row["fullest_rank"] is None else f" (mostly rank {row['fullest_rank']})"
            text = f"{row['dimension']}: all-to-all gives the fullest rank{who} {row['uneven']:.2f} times the mean"
            notes.append(Text(text, "dim"))
    return Group(Text(), Whole(table), *notes)


def _pipeline(pipeline: Json) -> RenderableType:
    """Return the stages of a pipeline: how long each computes and waits, and what explains the waiting."""
    table = Table(title="Stages of the pipeline, ms per step", title_justify="left", box=None)
    for title in ("stage", "rank", "compute", "bubble", "filling", "draining", "by schedule", "by slower stages"):
        table.add_column(title, justify="right")
    names = ("compute_ms", "bubble_ms", "warm_up_ms", "drain_ms", "schedule_ms", "uneven_ms")
    for number, stage in list(enumerate(pipeline["stages"]))[:_SHOWN_RANKS]:
        table.add_row(str(number), str(stage["rank"]), *(_number(stage[name]) for name in names))
    text = (
        f"bubble: waiting for other stages while nothing computes; {pipeline['micro_batches']:.3g} forward passes, so "
        f"with equal stages {pipeline['even_share']:.0%} of the compute and the bubble; a bubble longer than both "
        "explain is waiting for launches, for other work, or for the network"
    )
    return Group(Text(), Whole(table), Text(text, "dim"))


def _collectives(summary: Json) -> RenderableType | None:
    rows = summary["collectives"]
    if not rows:
        return None
    title = "Collectives (median ms per call; busbw from the shortest duration)"
    table = Table(title=title, title_justify="left", box=None)
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
    return Group(Text(), Whole(table))


def _agreement(summary: Json) -> RenderableType | None:
    found = summary["agreement"]
    if found is None:
        return None
    table = Table(title="Two profilers compared, ms per step", title_justify="left", box=None)
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
    return Group(Text(), Whole(table))


def _findings(summary: Json) -> RenderableType | None:
    """Return the findings, the costliest first: how severe, what, on which ranks, what a fix saves, and the advice."""
    lines, per, indent = [], per_words(summary), len("medium") + 2
    for finding in summary["findings"]:
        severity = finding["severity"]
        text = Text("  ")
        text.append(f"{severity:<{indent}}", _SEVERITY.get(severity, "default"))
        text.append(finding["id"], _SEVERITY.get(severity, "bold"))
        text.append(f" ({ranks_words(finding['ranks'], summary['world_size'])}){gain_words(finding, per)}")
        lines.append(Group(text, Padding(advice_of(finding), (0, 0, 0, indent + 2))))
    return Group(Text("\nWhat a fix would bring", "italic"), *lines) if lines else None


def _quality(summary: Json) -> RenderableType | None:
    said = clock_words(summary["alignment"])
    return Text(f"\n{said}", "dim") if said else None


def _warnings(summary: Json) -> RenderableType | None:
    lines = [Padding(Text(line, "yellow"), (0, 0, 0, 2)) for line in warning_lines(summary)]
    return Group(Text("\nWarnings", "italic"), *lines) if lines else None


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"
