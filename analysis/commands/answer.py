"""Makes the answer of `rankscope analyze`: loads, summarises and writes. Only an answer that is not kept needs this."""

from pathlib import Path

from rankscope.analysis.options import Options
from rankscope.analysis.pipeline import load
from rankscope.analysis.show.summary import summarise
from rankscope.conf.files import write_json


def make(paths: tuple[Path, ...], options: Options, folder: Path, *, reports: bool) -> None:
    """Analyse a recording and write `summary.json` to `folder`, with `reports` also everything else."""
    analysis = load(*paths, options=options)
    summary = summarise(analysis)
    if reports:
        from rankscope.analysis.show.files import write

        write(analysis, summary, folder, paths[0].resolve().name)
    write_json(folder / "summary.json", summary)
