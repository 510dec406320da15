"""`rankscope timeline PATH`: draws a recording as a picture, an interactive page and a Perfetto trace.

Exit status as for `rankscope analyze`: 0 drawn, 3 drawn but ranks or steps are missing, 2 nothing to draw.
"""

from pathlib import Path

import click
import msgspec

from rankscope.analysis.commands.analyze import ranks_option
from rankscope.analysis.commands.common import (
    Recording,
    no_cache_option,
    results_folder,
    run_command,
    steps_from_option,
)
from rankscope.analysis.core.console import Console
from rankscope.analysis.core.json import Json
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.progress import Steps
from rankscope.analysis.options import Options
from rankscope.analysis.pipeline import load
from rankscope.analysis.replay.critical_path import Stretch, by_rank, recorded_path
from rankscope.analysis.result import Analysis
from rankscope.analysis.show.summary import summarise
from rankscope.analysis.show.timeline.build import Timeline, build
from rankscope.analysis.show.timeline.original_events import Originals
from rankscope.analysis.show.timeline.sentences import step_sentence
from rankscope.analysis.show.words import verdict_sentence
from rankscope.conf import RunDir
from rankscope.conf.contract import OK, PARTIAL
from rankscope.conf.files import replacing, write_text
from rankscope.conf.plain_text import path_text

_KINDS = ("picture", "page", "perfetto")


def _kinds(_: click.Context, __: click.Parameter, text: str) -> frozenset[str]:
    """Read the list of outputs."""
    found = frozenset(part.strip() for part in text.split(","))
    if found - set(_KINDS):
        raise click.BadParameter(f"{text!r}: choose from {', '.join(_KINDS)}")
    return found


@click.command("rankscope timeline")
@click.argument("paths", nargs=-1, required=True, type=Recording())
@click.option("--step", type=int, help="Step of the picture, and the first step of the page (default: a typical one).")
@click.option("--ranks", metavar="LIST", callback=ranks_option, help="Draw only these ranks, for example 0,3,8-15.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Output folder (default: the analysis/ of a run, otherwise ./timeline/).",
)
@click.option(
    "--make",
    "kinds",
    default=",".join(_KINDS),
    show_default=True,
    callback=_kinds,
    metavar="LIST",
    help="Outputs to make.",
)
@steps_from_option
@click.option("--full", is_flag=True, help="Include every event of the original traces in the Perfetto trace.")
@no_cache_option
@click.option("--quiet", is_flag=True, help="Print only errors.")
def timeline_command(
    paths: tuple[Path, ...],
    step: int | None,
    ranks: frozenset[int] | None,
    out: Path | None,
    kinds: frozenset[str],
    steps_from: str | None,
    full: bool,
    no_cache: bool,
    quiet: bool,
) -> int:
    """Draw all ranks of a step on one clock, with waits and transfers told apart and the late rank marked.

    PATHS: a run folder, a pass folder, or a folder of traces. Two of them are drawn one below the other.
    """
    if len(paths) > 2:
        raise click.UsageError("give one recording, or two to compare")
    if len(paths) == 2 and (full or kinds == {"perfetto"}):
        raise click.UsageError("a Perfetto trace holds only one recording, because the clocks of two are unrelated")
    wanted = None if ranks is None else sorted(ranks)
    with Steps(shown=not quiet) as progress:
        drawn: list[Timeline] = []
        summaries: list[Json] = []
        analyses: list[Analysis] = []
        for path, name in zip(paths, _names(paths), strict=True):
            progress.next(f"reading {name}")
            analysis = load(path, options=Options(cache=not no_cache, progress=not quiet, steps_from=steps_from))
            analyses.append(analysis)
            summaries.append(summarise(analysis))
            drawn.append(build(analysis, name, ranks=wanted))
        critical = [recorded_path(analysis) for analysis in analyses]
        step, drawn = _common_step(drawn, analyses, wanted, step)
        folder = out or _folder(paths)
        originals = Originals(paths[0], analyses[0]) if full and len(paths) == 1 else None
        pairs = zip(drawn, critical, strict=True)
        drawn = [msgspec.structs.replace(item, critical=by_rank(stretches)) for item, stretches in pairs]
        written = _write(drawn, summaries, step, folder, kinds, originals, critical[0], progress)
    if not quiet:
        console = Console()
        for item, summary in zip(drawn, summaries, strict=True):
            console.print((f"{item.name}: " if len(drawn) > 1 else "") + verdict_sentence(summary), style="bold")
            console.print(step_sentence(item, step))
        console.print()
        for title, path in written.items():
            console.print(f"{title}: {path}", soft_wrap=True)
    return PARTIAL if any(summary["status"] == "partial" for summary in summaries) else OK


def _names(paths: tuple[Path, ...]) -> list[str]:
    names = [path_text(path.resolve().name) for path in paths]
    return names if len(set(names)) == len(names) else [path_text(path) for path in paths]


def _common_step(
    drawn: list[Timeline], analyses: list[Analysis], ranks: list[int] | None, step: int | None
) -> tuple[int, list[Timeline]]:
    """Return the step to show, and timelines that contain it, even if the analysis left it out."""
    if step is not None:
        pairs = zip(drawn, analyses, strict=True)
        return step, [
            item if step in item.steps else build(analysis, item.name, step=step, ranks=ranks)
            for item, analysis in pairs
        ]
    shared = set.intersection(*(set(item.steps) for item in drawn))
    if not shared:
        raise AnalysisError(f"{' and '.join(item.name for item in drawn)}: no step was analysed in both; give --step")
    typical = [item.typical for item in reversed(drawn)]
    return next((number for number in typical if number in shared), min(shared)), drawn


def _folder(paths: tuple[Path, ...]) -> Path:
    return results_folder(paths[0]) if len(paths) == 1 and RunDir(paths[0]).record.exists() else Path("timeline")


def _write(
    drawn: list[Timeline],
    summaries: list[Json],
    step: int,
    folder: Path,
    kinds: frozenset[str],
    originals: Originals | None,
    critical: list[Stretch],
    progress: Steps,
) -> dict[str, Path]:
    written: dict[str, Path] = {}
    headlines = [verdict_sentence(summary) for summary in summaries]
    folder.mkdir(parents=True, exist_ok=True)
    if "picture" in kinds:
        progress.next("drawing the picture")
        from rankscope.analysis.show.timeline.figure import figure, save

        (folder / "figures").mkdir(exist_ok=True)
        picture = figure(drawn, step, headlines)
        for kind in ("png", "svg"):
            written[f"Picture ({kind.upper()})"] = target = folder / "figures" / f"timeline.{kind}"
            with replacing(target) as temporary:
                save(picture, temporary, kind)
    if "page" in kinds:
        progress.next("writing the page")
        from rankscope.analysis.show.timeline.page import page

        written["Page"] = folder / "timeline.html"
        write_text(written["Page"], page(drawn, step, headlines))
    if "perfetto" in kinds and len(drawn) == 1:
        progress.next("writing the Perfetto trace")
        from rankscope.analysis.show.timeline import perfetto

        written["Perfetto"] = folder / "timeline.perfetto.json.gz"
        with replacing(written["Perfetto"]) as temporary:
            perfetto.write(temporary, drawn[0], originals, critical)
    return written


def main(argv: list[str]) -> int:
    """Run `rankscope timeline`; returns the exit status."""
    return run_command(timeline_command, argv)
