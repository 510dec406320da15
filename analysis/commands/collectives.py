"""`rankscope collectives`: which rank blocks the others, from NCCL Inspector's records of a job without a profiler.

Exit status: 0 from all ranks, 3 ranks, lines or communicators are missing, 2 no record that can be read.
"""

from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import RenderableType
from rich.table import Table

from rankscope.analysis.commands.common import Location, put_json, run_command
from rankscope.analysis.core.console import Console
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.read.inspector.lines import GPU, TIMINGS
from rankscope.conf.contract import OK, PARTIAL

_SHOWN = 20
_LEFT = ("kind", "group", "timing")


@click.command("rankscope collectives")
@click.argument("folder", type=Location())
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write it to this file; - for stdout.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def collectives(folder: Path, json_file: Path | None, quiet: bool) -> int:
    """Say which rank blocks the others, and how long transfers and waits are, without a profiler.

    FOLDER: the files that NCCL's Inspector plugin wrote, one per process (NCCL_INSPECTOR_DUMP_DIR).
    """
    from rankscope.analysis.job.blockers import judge
    from rankscope.analysis.job.inspector_calls import match
    from rankscope.analysis.read.inspector.reader import read

    records = read(folder)
    found = judge(match(records), records.pairs, records.notices, Limits())
    plain = msgspec.to_builtins(found, str_keys=True)
    console = Console(stderr=json_file == Path("-"), quiet=quiet)
    for line in found.lines:
        console.print(line, style="bold" if line is found.lines[0] else None)
    if found.collectives:
        console.print(_table(plain["collectives"]))
    for warning in plain["warnings"]:
        console.print(f"{warning['level']}: {warning['message']}", style="dim")
    put_json(json_file, plain)
    return PARTIAL if found.status == "partial" else OK


def _table(rows: list[dict[str, Any]]) -> RenderableType:
    from rankscope.analysis.show.terminal import Whole
    from rankscope.analysis.show.words import byte_size

    table = Table(title="Collectives (median ms per call, bus bandwidth)", title_justify="left", box=None)
    mixed = any(row["timing"] != TIMINGS[GPU] for row in rows)
    titles = ("kind", "group", "size", "calls", "transfer", "wait", "GB/s", "own GB/s", *(("timing",) if mixed else ()))
    for title in titles:
        table.add_column(title, no_wrap=True, justify="left" if title in _LEFT else "right")
    for row in rows[:_SHOWN]:
        numbers = [row[name] for name in ("transfer_ms_p50", "wait_ms_p50", "busbw_GBs", "own_busbw_GBs")]
        shown = ("?" if number is None else f"{number:.4g}" for number in numbers)
        text = "?" if row["bytes"] is None else byte_size(row["bytes"])
        table.add_row(row["kind"], row["group"], text, str(row["count"]), *shown, *((row["timing"],) if mixed else ()))
    if len(rows) > _SHOWN:
        table.caption = f"and {len(rows) - _SHOWN} more rows, in --json"
    return Whole(table)


def main(argv: list[str]) -> int:
    """Run `rankscope collectives`; returns the exit status."""
    return run_command(collectives, argv)
