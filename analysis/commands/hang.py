"""`rankscope hang`: why a job hangs, from the dumps and stacks that its ranks left.

Exit status: 0 a conclusion from all ranks, 3 a conclusion although dumps are missing, 2 no dump that can be read.
"""

from pathlib import Path

import click
import msgspec

from rankscope.analysis.commands.common import Location, put_json, run_command
from rankscope.analysis.core.console import Console
from rankscope.conf.contract import OK, PARTIAL


@click.command("rankscope hang")
@click.argument("folder", type=Location())
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write it to this file; - for stdout.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
def hang(folder: Path, json_file: Path | None, quiet: bool) -> int:
    """Say which rank blocks a job that hangs, and in which collective.

    FOLDER: Flight Recorder dumps of torch (JSON or pickle) and, if there are any, stacks by faulthandler or py-spy, one
    file per rank with the rank's number in its name.
    """
    from rankscope.analysis.hang.dumps import read
    from rankscope.analysis.hang.judge import judge

    found = judge(read(folder))
    console = Console(stderr=json_file == Path("-"), quiet=quiet)
    for line in found.lines:
        console.print(line, style="bold" if line is found.lines[0] else None)
    plain = msgspec.to_builtins(found, str_keys=True)
    put_json(json_file, plain)
    return PARTIAL if found.no_dump else OK


def main(argv: list[str]) -> int:
    """Run `rankscope hang`; returns the exit status."""
    return run_command(hang, argv)
