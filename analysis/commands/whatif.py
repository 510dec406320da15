"""`rankscope whatif`: the critical path of the recorded steps over all ranks, and what changes would bring.

Exit status: 0 predicted, 3 predicted although ranks are missing, 2 nothing to replay or a change that cannot
be read.
"""

from pathlib import Path

import click
import msgspec

from rankscope.analysis.commands.common import Recording, no_cache_option, put_json, run_command, steps_from_option
from rankscope.analysis.core.console import Console
from rankscope.analysis.explain.as_changes import changes_of
from rankscope.analysis.options import Options
from rankscope.analysis.pipeline import load
from rankscope.analysis.replay.changes import EXAMPLES
from rankscope.analysis.show.what_if import show
from rankscope.conf.contract import OK, PARTIAL


@click.command("rankscope whatif", epilog=f"Changes: {EXAMPLES}.")
@click.argument("path", type=Recording())
@click.argument("changes", nargs=-1)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write it to this file; - for stdout.")
@steps_from_option
@no_cache_option
@click.option("--ceilings", type=click.Path(path_type=Path), help="What the node can do, from `rankscope ceilings`.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def whatif(
    path: Path,
    changes: tuple[str, ...],
    json_file: Path | None,
    steps_from: str | None,
    no_cache: bool,
    ceilings: Path | None,
    quiet: bool,
) -> int:
    """Replay the recorded steps of all ranks, and say what decides their length and what CHANGES would bring.

    PATH: a run folder, a pass folder, or a folder of traces. CHANGES may also be the ids of findings, such as
    data_stall: then all that they are about is gone. Without CHANGES it prints only the critical path.
    """
    from rankscope.analysis.replay.predict import predict, uses_ceilings

    options = Options(cache=not no_cache, progress=not quiet, steps_from=steps_from, ceilings=ceilings)
    analysis = load(path, options=options)
    wanted = changes_of(changes, analysis.findings, len(analysis.ranks), gpu=analysis.on_gpu)
    found = predict(analysis, wanted, analysis.without.step_ms)
    console = Console(stderr=json_file == Path("-"), quiet=quiet)
    console.print(show(found))
    if ceilings is not None and not uses_ceilings(wanted):
        console.print("--ceilings was not used: only gradient_mb= without busbw_GBs= needs it")
    plain = msgspec.to_builtins(found)
    put_json(json_file, plain)
    return PARTIAL if analysis.missing_ranks else OK


def main(argv: list[str]) -> int:
    """Run `rankscope whatif`; returns the exit status."""
    return run_command(whatif, argv)
