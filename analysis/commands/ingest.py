"""`rankscope ingest PATH... --out DIR`: the work on each rank alone, done ahead of the analysis and kept in a folder.

Ranks are independent of one another, so the parts of a job array do it side by side (`--part 3/64`);
`rankscope analyze PATH... --cache DIR` then only joins them. A part that runs twice changes nothing.
"""

import re
from pathlib import Path

import click
from rich.console import Console

from rankscope.analysis import pipeline
from rankscope.analysis.commands.common import Location, run_command
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.options import Options
from rankscope.analysis.rank import workers
from rankscope.analysis.read import sources
from rankscope.analysis.read.nsys import reports
from rankscope.conf.contract import OK, PARTIAL


def _part(_: click.Context, __: click.Parameter, text: str) -> tuple[int, int]:
    """Read a part such as `3/64`: the fourth of 64, since job arrays count from 0."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not int(match[1]) < int(match[2]):
        raise click.BadParameter(f"{text!r} is no part; write K/N with K from 0 to N - 1")
    return int(match[1]), int(match[2])


@click.command("rankscope ingest")
@click.argument("paths", nargs=-1, required=True, type=Location())
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Where what was found is kept.")
@click.option("--part", default="0/1", callback=_part, metavar="K/N", help="Of N parts the K-th, from 0.")
def ingest(paths: tuple[Path, ...], out: Path, part: tuple[int, int]) -> int:
    """Read ranks and keep what was found of each, for `rankscope analyze --cache DIR`.

    PATHS: as for `rankscope analyze`, and the same ones.
    """
    console = Console(highlight=False)
    found = reports.expand(sources.find(list(paths)), None)
    options = Options(cache_folder=out)
    jobs = pipeline.jobs(found, options)[part[0] :: part[1]]
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for job in jobs:
        outcome = workers.prepare_rank(job)
        label = ", ".join(source.label for source in job.sources)
        if outcome.data is not None:
            console.print(f"{label}: {'read and kept' if outcome.kept else 'nothing to do'}")
        elif outcome.notices or outcome.conflicting:
            failed += 1
            said = outcome.notices[0].message if outcome.notices else "files of several recordings"
            console.print(f"{label}: no numbers: {said}")
        else:
            console.print(f"{label}: not a trace")
    if jobs and failed == len(jobs):
        raise AnalysisError(f"{len(jobs)} of {len(jobs)} ranks gave no numbers; see above")
    return PARTIAL if failed else OK


def main(argv: list[str]) -> int:
    """Run the command; returns the exit status."""
    return run_command(ingest, argv)
