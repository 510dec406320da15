"""`rankscope ingest PATH... --out DIR`: does the work per rank before the analysis, and keeps the results in a folder.

Ranks are independent, so the tasks of a job array can do it in parallel (`--part 3/64`). `rankscope analyze PATH...
--cache DIR` then only joins the results. A part that runs twice changes nothing.
"""

import re
from pathlib import Path

import click

from rankscope.analysis.commands.common import Location, run_command
from rankscope.analysis.core.console import Console
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.options import Options
from rankscope.analysis.rank import workers
from rankscope.analysis.read import sources
from rankscope.analysis.read.nsys import reports
from rankscope.conf.contract import OK, PARTIAL


def _part(_: click.Context, __: click.Parameter, text: str) -> tuple[int, int]:
    """Read a part such as `3/64`, the fourth of 64: job arrays count from 0."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise click.BadParameter(f"{text!r} is not a part; write K/N with K from 0 to N - 1")
    return int(match[1]), int(match[2])


@click.command("rankscope ingest")
@click.argument("paths", nargs=-1, required=True, type=Location())
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the results.")
@click.option(
    "--part", default="0/1", callback=_part, metavar="K/N", help="Read only the K-th of N parts; K counts from 0."
)
def ingest(paths: tuple[Path, ...], out: Path, part: tuple[int, int]) -> int:
    """Read each rank and keep the result for `rankscope analyze --cache DIR`.

    PATHS: the same paths that you will give to `rankscope analyze`.
    """
    console = Console()
    found = reports.expand(sources.find(list(paths)), None)
    options = Options(cache_folder=out)
    jobs = workers.jobs(found, options)[part[0] :: part[1]]
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for job in jobs:
        outcome = workers.prepare_rank(job)
        label = ", ".join(source.label for source in job.sources)
        if outcome.kept is False:
            failed += 1
            console.print(f"{label}: read, but {out} cannot be written: no room, or no permission")
        elif outcome.data is not None:
            console.print(f"{label}: {'read and kept' if outcome.kept else 'nothing to do'}")
        elif outcome.notices or outcome.conflicting:
            failed += 1
            said = outcome.notices[0].message if outcome.notices else "files of several recordings"
            console.print(f"{label}: no numbers: {said}")
        else:
            console.print(f"{label}: not a trace")
    if jobs and failed == len(jobs):
        raise AnalysisError(f"{len(jobs)} of {len(jobs)} ranks gave nothing to keep; see above")
    return PARTIAL if failed else OK


def main(argv: list[str]) -> int:
    """Run `rankscope ingest`; returns the exit status."""
    return run_command(ingest, argv)
