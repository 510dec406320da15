"""`rankscope analyze`: analyses a recording, prints the summary, and writes `summary.json`, reports and tables.

Exit status: 0 the numbers are valid, 3 they are partial, 2 there are none (one line says why), 1 a bug.
"""

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from rankscope.analysis.commands import answers
from rankscope.analysis.commands.common import (
    Recording,
    no_cache_option,
    output,
    put_json,
    results_folder,
    run_command,
    steps_from_option,
)
from rankscope.analysis.core import rank_list
from rankscope.analysis.core.console import Console
from rankscope.analysis.core.json import Json
from rankscope.analysis.core.limits import Limits, parse
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.options import Options
from rankscope.analysis.rank import dask as cluster
from rankscope.analysis.show.terminal import show
from rankscope.conf import RunDir
from rankscope.conf.command import complain
from rankscope.conf.contract import NO_NUMBERS, OK, PARTIAL

Tell = Callable[[Json], None]  # prints a summary


def ranks_option(_: click.Context, __: click.Parameter, text: str | None) -> frozenset[int] | None:
    """Read a list of ranks such as `0,3,8-15`."""
    if text is None:
        return None
    try:
        return rank_list.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _steps(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int | None, int | None] | None:
    """Read a range of steps such as `5:8`, `5:` or `:8`."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None or text == ":":
        raise click.BadParameter(f"{text!r} is not a range of steps such as 5:8")
    return (int(match[1]) if match[1] else None), (int(match[2]) if match[2] else None)


def _limits(_: click.Context, __: click.Parameter, items: tuple[str, ...]) -> Limits:
    """Read thresholds such as `high=0.2`."""
    try:
        return parse(items)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("rankscope analyze")
@click.argument("paths", nargs=-1, required=True, type=Recording())
@click.option("--out", metavar="DIR", help="Folder or URL for the results (default for a run: its analysis/).")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write the summary to this file; - for stdout."
)
@click.option("--allow-partial", is_flag=True, help="Exit 0 even if ranks or steps are missing.")
@click.option(
    "--only-ranks", metavar="LIST", callback=ranks_option, help="Read only these ranks, for example 0,3,8-15."
)
@click.option("--only-steps", metavar="A:B", callback=_steps, help="Analyse only steps A to B; A or B may be omitted.")
@no_cache_option
@click.option(
    "--cache",
    "cache_folder",
    type=click.Path(path_type=Path),
    help="Use the folder that `rankscope ingest --out` wrote.",
)
@click.option("--dask", metavar="ADDRESS", help="Read the ranks on the Dask cluster with this scheduler.")
@steps_from_option
@click.option(
    "--limits",
    "limits",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_limits,
    help="Set a threshold of the findings (docs/findings.md). May be repeated.",
)
@click.option(
    "--ceilings",
    type=click.Path(path_type=Path),
    help="File of `rankscope ceilings` for the node that recorded (a run finds it automatically).",
)
@click.option("--brief", is_flag=True, help="Print only the verdict, the findings in a line each, and the files.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def analyze(
    paths: tuple[Path, ...],
    out: str | None,
    json_file: Path | None,
    allow_partial: bool,
    only_ranks: frozenset[int] | None,
    only_steps: tuple[int | None, int | None] | None,
    no_cache: bool,
    cache_folder: Path | None,
    dask: str | None,
    steps_from: str | None,
    limits: Limits,
    ceilings: Path | None,
    brief: bool,
    quiet: bool,
) -> int:
    """Show where the time of a distributed step goes, which rank is late, and why.

    PATHS: a run folder, a pass folder, a folder of torch.profiler traces or Nsight Systems reports, or such files.
    """
    console = Console(stderr=json_file == Path("-"), quiet=quiet)
    try:
        options = Options(
            cache=not no_cache,
            cache_folder=cache_folder,
            executor=None if dask is None else cluster.executor(dask),
            progress=not quiet,
            only_ranks=only_ranks,
            only_steps=only_steps,
            steps_from=steps_from,
            limits=limits,
            ceilings=ceilings,
        )
        with output(out) as folder:
            status = _analyze(paths, folder, json_file, options, console, brief=brief)
            return OK if status == PARTIAL and allow_partial else status
    except AnalysisError as error:
        from rankscope.analysis.show.summary import error_summary

        complain(f"rankscope: {error}")
        put_json(json_file, error_summary(str(error), error.notices))
        return NO_NUMBERS


def _analyze(
    paths: tuple[Path, ...],
    out: Path | None,
    json_file: Path | None,
    options: Options,
    console: Console,
    *,
    brief: bool,
) -> int:
    folder = _folder(paths, out)
    key = answers.key_of(paths, options)
    tell = partial(show, console=console, brief=brief)
    summary = _given_again(key, folder, tell, console) or _made(paths, options, key, folder, tell, console)
    put_json(json_file, summary)
    return PARTIAL if summary["status"] == "partial" else OK


def _given_again(key: str | None, folder: Path | None, tell: Tell, console: Console) -> Json | None:
    """Give the kept answer and return its summary; None if there is none that is complete."""
    answer = answers.kept(key)
    try:
        if answer is None or (folder is not None and not answer.has_reports):
            return None
        summary = answer.summary()
        if folder is not None:
            answer.place_in(folder)
    except FileNotFoundError:  # another process has just replaced it
        return None
    tell(summary)
    _say_where(answer, folder, console)
    return summary


def _made(
    paths: tuple[Path, ...], options: Options, key: str | None, folder: Path | None, tell: Tell, console: Console
) -> Json:
    """Analyse, give the answer, keep it, and return its summary."""
    from rankscope.analysis.commands.answer import make

    summary, write = make(paths, options)
    tell(summary)  # before the files, which a full disk may refuse
    if folder is None:
        answers.keep(key, None, summary)
        return summary
    with answers.new_folder(folder) as new:
        write(new)
        answers.keep(key, new, summary)
        answer = answers.made_in(new)
        answer.place_in(folder, os.replace)
    _say_where(answer, folder, console)
    return summary


def _say_where(answer: answers.Answer, folder: Path | None, console: Console) -> None:
    """Print where the files are. A run without traces has no tables and no report.md."""
    if folder is None:
        return
    reports = [str(folder / name) for name in ("report.html", "report.md") if name in answer.names]
    tables = [str(folder / "tables")] if "report.md" in answer.names else []
    numbers = [str(folder / "summary.json"), *tables]
    console.print(f"\nReport: {', '.join(reports)}\nNumbers: {', '.join(numbers)}")


def main(argv: list[str]) -> int:
    """Run `rankscope analyze`; returns the exit status."""
    return run_command(analyze, argv)


def _folder(paths: tuple[Path, ...], out: Path | None) -> Path | None:
    """Return the folder to write to: `out`, or the analysis/ of a run; None for other recordings without `out`."""
    if out is not None:
        return out
    if len(paths) != 1 or not RunDir(paths[0]).record.exists():
        return None
    return results_folder(paths[0])
