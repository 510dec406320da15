"""`rankscope explain`: verdict, findings and what cannot be told, for programs (`--json`) and for people.

Exit status as for `rankscope analyze`: 0 explained, 3 explained but ranks or steps are missing, 2 nothing to explain.
"""

import json
from pathlib import Path

import click
import msgspec

from rankscope.analysis.commands.common import Recording, no_cache_option, run_command, steps_from_option
from rankscope.analysis.core.console import Console
from rankscope.analysis.options import Options
from rankscope.analysis.pipeline import load
from rankscope.analysis.show.answers import Answers, answers_of
from rankscope.analysis.show.summary import summarise
from rankscope.conf.contract import OK, PARTIAL


@click.command("rankscope explain")
@click.argument("path", type=Recording())
@click.option("--json", "as_json", is_flag=True, help="Print JSON: see docs/programs.md.")
@steps_from_option
@no_cache_option
def explain(path: Path, as_json: bool, steps_from: str | None, no_cache: bool) -> int:
    """Say what a recording tells, with bounds, and what it cannot tell, with reasons.

    PATH: a run folder, a pass folder, or a folder of traces.
    """
    analysis = load(path, options=Options(cache=not no_cache, steps_from=steps_from))
    found = answers_of(summarise(analysis))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=1))  # ASCII: names could control the terminal
    else:
        _show(found, Console())
    return PARTIAL if found.status == "partial" else OK


def _show(found: Answers, console: Console) -> None:
    console.print(found.sentence, style="bold")
    for item in found.findings:
        ranks = f"rank {item.ranks[0]}" if len(item.ranks) == 1 else f"{len(item.ranks)} ranks"
        gain = item.gain
        saves = "gain unknown"
        if gain.at_most_ms is not None:
            saves = f"at most {gain.at_most_ms:.2f} of {gain.of_step_ms:.2f} ms" if gain.of_step_ms else "a gain"
        console.print(f"{item.id} ({item.severity}, {ranks}, {saves}): {item.advice}")
    if found.cannot_tell:
        console.print("\nWhat this recording cannot tell", style="bold")
    for unknown in found.cannot_tell:
        what = unknown.about.replace("_", " ") + (f" of {unknown.of}" if unknown.of else "")
        console.print(f"{what}: {unknown.reason}")


def main(argv: list[str]) -> int:
    """Run `rankscope explain`; returns the exit status."""
    return run_command(explain, argv)
