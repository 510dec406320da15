"""The commands `rankscope report` and `rankscope compare`."""

import shlex
from pathlib import Path

import click
import msgspec
from rich.table import Table

from rankscope.analysis.commands.common import Location, put_json, results_folder, run_command
from rankscope.analysis.commands.compare_work import show_work
from rankscope.analysis.core.console import Console
from rankscope.analysis.core.json import Json
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.progress import Steps
from rankscope.analysis.show.words import byte_size
from rankscope.analysis.sweep import compare
from rankscope.analysis.sweep.compare_page import page
from rankscope.analysis.sweep.points import Point, run_point, sweep_points, tell_jobs_apart
from rankscope.analysis.sweep.report import summarise_sweep, write_report
from rankscope.conf import RunDir
from rankscope.conf.contract import GATE, OK, PARTIAL
from rankscope.conf.files import write_text
from rankscope.conf.plain_text import path_text
from rankscope.conf.sweep_dir import SweepDir


@click.command("rankscope report")
@click.argument("sweeps", nargs=-1, required=True, type=Location())
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the report (default: the sweep's analysis/).")
@click.option("--target", type=float, default=0.8, show_default=True, help="The advice warns below this efficiency.")
@click.option("--allow-partial", is_flag=True, help="Exit 0 even if points failed.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def report(sweeps: tuple[Path, ...], out: Path | None, target: float, allow_partial: bool, quiet: bool) -> int:
    """Show how well a sweep scales, where time is lost, and what to try.

    SWEEPS: folders that `rankscope run -m` made. The points of several are combined; then --out is required.
    """
    points = _points_of(sweeps)
    if out is None and len(sweeps) > 1:
        raise AnalysisError("several sweeps: --out is required, the folder for their report")
    target_folder = out or results_folder(sweeps[0])
    with Steps(shown=not quiet) as progress:
        progress.next("bootstrapping intervals")
        summary = summarise_sweep(points, target)
        progress.next("drawing figures")
        write_report(summary, points, target_folder, ", ".join(path_text(sweep.resolve().name) for sweep in sweeps))
    console = Console(quiet=quiet)
    show_sweep(summary, console)
    console.print(f"\nReport: {target_folder / 'report.html'}, {target_folder / 'report.md'}")
    failed = any(point["status"] != "completed" for point in summary["points"])
    return PARTIAL if failed and not allow_partial else OK


def _points_of(sweeps: tuple[Path, ...]) -> list[Point]:
    """Return the points of all sweeps. If there are several, the ids of points begin with the sweep's number."""
    found = []
    for number, sweep in enumerate(sweeps, start=1):
        points = sweep_points(SweepDir(sweep))
        if not any(point.measured for point in points):
            record = SweepDir(sweep).record
            raise AnalysisError(f"{sweep}: no point has a plain pass; see the status of each point in {record}")
        for point in points:
            point.id = point.id if len(sweeps) == 1 else f"{number}-{point.id}"
            if point.measured is not None:
                point.measured = msgspec.structs.replace(point.measured, id=point.id)
        found += points
    tell_jobs_apart(found)
    return found


def show_sweep(summary: Json, console: Console) -> None:
    """Print the points and efficiencies; fits 80 columns."""
    console.print(points_table(summary))
    if any(point["baseline"] for point in summary["points"]):
        console.print("+: a baseline that rankscope added to the sweep", style="dim")
    if summary["efficiency"]:
        console.print(efficiency_table(summary["efficiency"]))
    if summary["latency"]:
        console.print(latency_table(summary["latency"]))
    if summary["headline"]:
        console.print(summary["headline"], style="bold")
    for line in summary["advice"]:
        console.print(line, style="bold")
    for notice in summary["warnings"]:
        console.print(notice["message"], style="yellow")


def points_table(summary: Json) -> Table:
    """Return the points as a table, without columns that have no value."""
    columns: dict[str, list[str]] = {}
    for point in summary["points"]:
        memory = point["memory_peak_bytes"]
        row = {
            "job": _text(point["job"], "{}"),
            "ranks": _text(point["world_size"], "{}"),
            "batch": _text(point["rank_batch"], "{}"),
            "DDP": _text(point["ddp"], "{}"),
            "step ms": _text(point["step_ms"], "{:.2f}"),
            "samples/s": _text(point["samples_per_s"], "{:.1f}"),
            "memory": "-" if memory is None else byte_size(memory),
            "status": point["status"] + (" +" if point["baseline"] else ""),
        }
        for name, text in row.items():
            columns.setdefault(name, []).append(text)
    shown = {name: texts for name, texts in columns.items() if set(texts) != {"-"}}
    table = Table(box=None, title="Points of the sweep (median step)", title_justify="left")
    for name in shown:
        table.add_column(name, justify="left" if name in ("job", "DDP", "status") else "right")
    for texts in zip(*shown.values(), strict=True):
        table.add_row(*texts)
    return table


def efficiency_table(rows: list[Json]) -> Table:
    """Return how well the points with several ranks scale, with the intervals, within 80 columns."""
    table = Table(box=None, title="Efficiency (95 %)", title_justify="left")
    for name in ("point", "weak", "strong"):
        table.add_column(name, justify="left" if name == "point" else "right")
    for row in rows:
        cells = []
        for kind in ("weak", "strong"):
            between = row[f"{kind}_interval"]
            cells.append(_text(row[kind], "{:.1%}") + (f" ({between[0]:.1%} to {between[1]:.1%})" if between else ""))
        table.add_row(row["label"], *cells)
    return table


def latency_table(rows: list[Json]) -> Table:
    """Return the latency curves as a table within 80 columns."""
    table = Table(box=None, title="Latency of one replica (samples/s: by the mean)", title_justify="left")
    for name in ("curve", "batch", "p50 ms", "p95 ms", "p99 ms", "samples/s", ""):
        table.add_column(name, justify="left" if name in ("curve", "") else "right")
    for row in rows:
        times = (_text(row[name], "{:.2f}") for name in ("p50_ms", "p95_ms", "p99_ms"))
        knee = "knee" if row["knee"] else ""
        table.add_row(row["curve"], str(row["batch"]), *times, f"{row['samples_per_s']:.1f}", knee)
    return table


@click.command("rankscope compare")
@click.argument("a", type=Location())
@click.argument("b", type=Location())
@click.option(
    "--fail-if", "conditions", multiple=True, help="Exit 4 if this holds, for example 'step_ms > +5%'. May be repeated."
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Write the comparison to this file; - for stdout."
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for compare.html: both curves and what changed.")
@click.option(
    "--work", is_flag=True, help="Also compare kernels, operators and collectives (always done if a condition holds)."
)
@click.option("--quiet", is_flag=True, help="Print only errors.")
def compare_command(
    a: Path, b: Path, conditions: tuple[str, ...], json_file: Path | None, out: Path | None, work: bool, quiet: bool
) -> int:
    """Compare two run folders or two sweeps by metric, and show which changes are noise.

    A and B may also be folders of traces: then only their work is compared.
    """
    if not _is_job(a) and not _is_job(b) and not conditions:
        return _compare_traces(a, b, json_file, quiet)
    gates = _gates(conditions)
    found, alone = compare.pairs(_points(a), _points(b))
    if not found:
        raise AnalysisError(f"{a} and {b}: they have no point in common")
    console = Console(stderr=json_file == Path("-"), quiet=quiet)
    compared = [(before, after, compare.changes(before, after)) for before, after in found]
    rows: list[Json] = []
    worked: list[Json] = []
    by_eye: list[str] = []
    broken: list[str] = []
    for before, after, changes in compared:
        _show_changes(changes, compare.differences(before, after), before, after, console)
        rows += [{**_plain(change), "a_point": before.id, "b_point": after.id} for change in changes]
        fails = _failing(changes, gates, conditions)
        broken += fails
        if before.run_dir is None or after.run_dir is None or not (_traced(before) and _traced(after)):
            continue
        by_eye.append(shlex.join(["rankscope", "timeline", str(before.run_dir.path), str(after.run_dir.path)]))
        console.print(f"by eye: {by_eye[-1]}", style="dim", soft_wrap=True)
        if work or fails:
            worked += show_work(before.run_dir.path, after.run_dir.path, after.label, console)
    for line in alone:
        console.print(line, style="yellow")
    for line in broken:
        console.print(f"fails: {line}", style="bold red")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / "compare.html", page(compared, alone, broken))
        console.print(f"Page: {out / 'compare.html'}")
    result = {"schema": 1, "changes": rows, "alone": alone, "broken": broken, "timelines": by_eye, "work": worked}
    put_json(json_file, result)
    return GATE if broken else OK


def _gates(conditions: tuple[str, ...]) -> list[compare.Condition]:
    """Read the conditions of --fail-if."""
    gates = [compare.Condition.parse(text) for text in conditions]
    known = set(compare.metrics(Point(id="", run_dir=None, overrides=[], baseline=False, status="")))
    for gate, text in zip(gates, conditions, strict=True):
        if gate.metric not in known:
            raise AnalysisError(
                f"--fail-if {text!r}: unknown metric {gate.metric}; choose from {', '.join(sorted(known))}"
            )
    return gates


def _failing(changes: list[compare.Change], gates: list[compare.Condition], conditions: tuple[str, ...]) -> list[str]:
    """Return a line for each condition that holds."""
    pairs = list(zip(gates, conditions, strict=True))
    return [f"{change.point}: {text}" for gate, text in pairs for change in changes if gate.broken_by(change)]


def _is_job(path: Path) -> bool:
    return SweepDir(path).record.exists() or RunDir(path).record.exists()


def _compare_traces(a: Path, b: Path, json_file: Path | None, quiet: bool) -> int:
    """Compare the work of two recordings that are no run folders."""
    console = Console(stderr=json_file == Path("-"), quiet=quiet)
    worked = show_work(a, b, None, console)
    result = {"schema": 1, "changes": [], "alone": [], "broken": [], "timelines": [], "work": worked}
    put_json(json_file, result)
    return OK


def _plain(change: compare.Change) -> Json:
    return {name: getattr(change, name) for name in (*change.__struct_fields__, "is_noise")}


def _traced(point: Point) -> bool:
    """Return whether a point has traced steps, which a timeline needs."""
    return bool((point.summary or {}).get("steps"))


def _points(path: Path) -> list[Point]:
    if SweepDir(path).record.exists():
        return sweep_points(SweepDir(path))
    return [run_point(RunDir(path))]


def _show_changes(changes: list[compare.Change], differences: list[str], a: Point, b: Point, console: Console) -> None:
    table = Table(box=None, title=f"{a.id} -> {b.id} ({b.label})", title_justify="left")
    for name in ("metric", "A", "B", "change", "95 %", ""):
        table.add_column(name, justify="left" if name in ("metric", "") else "right")
    for change in changes:
        if change.a is None and change.b is None:
            continue
        between = change.interval
        table.add_row(
            change.metric,
            _text(change.a, "{:.4g}"),
            _text(change.b, "{:.4g}"),
            "-" if change.ratio is None else f"{change.ratio - 1:+.1%}",
            "" if between is None else f"{between[0] - 1:+.1%} to {between[1] - 1:+.1%}",
            {True: "noise", False: "", None: ""}[change.is_noise],
        )
    console.print(table)
    if differences:
        console.print("differs: " + "; ".join(differences), style="dim")


def _text(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)


def report_main(argv: list[str]) -> int:
    """Run `rankscope report`; returns the exit status."""
    return run_command(report, argv)


def compare_main(argv: list[str]) -> int:
    """Run `rankscope compare`; returns the exit status."""
    return run_command(compare_command, argv)
