"""Makes the answer of `rankscope analyze`: loads, summarises and writes. A kept answer does not need this module."""

from collections.abc import Callable
from pathlib import Path

from rankscope.analysis.core.json import Json
from rankscope.analysis.options import Options
from rankscope.analysis.pipeline import load
from rankscope.analysis.show.summary import summarise
from rankscope.conf.files import write_json
from rankscope.conf.plain_text import path_text


def make(paths: tuple[Path, ...], options: Options) -> tuple[Json, Callable[[Path], None]]:
    """Analyse a recording; returns its summary, and what writes all files of the answer to a folder."""
    analysis = load(*paths, options=options)
    summary = summarise(analysis)

    def write(folder: Path) -> None:
        from rankscope.analysis.show import files

        files.write(analysis, summary, folder, path_text(paths[0].resolve().name))
        write_json(folder / "summary.json", summary)

    return summary, write
