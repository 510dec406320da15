"""`report.md`: the summary as text that can be pasted into an issue. Input: `summary.json`. Output: Markdown."""

import shlex

import msgspec

from rankscope.analysis.core.json import Json
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.show import pages
from rankscope.analysis.show.words import (
    device_words,
    per_words,
    slow_words,
    unsplit_words,
    verdict_sentence,
    warning_lines,
)
from rankscope.conf import RunDir
from rankscope.conf.files import read_json
from rankscope.conf.plain_text import path_text


def report(summary: Json, run_dir: RunDir | None) -> str:
    """Return the report; `run_dir` adds the command that repeats the run."""
    return pages.render(
        "report.md.jinja",
        unknown="?",
        s=summary,
        title=f"rankscope: {path_text(run_dir.path.resolve().name)}" if run_dir else "rankscope",
        verdict=verdict_sentence(summary),
        slow=slow_words(summary),
        rate=summary["throughput"],
        device=device_words(summary["per_rank"]),
        per=per_words(summary),
        unsplit=unsplit_words(summary["per_rank"]),
        parts=PARTS,
        warnings=warning_lines(summary),
        command=None if run_dir is None else command(run_dir),
    )


def command(run_dir: RunDir) -> str | None:
    """Return the command that repeats a run; None if its record is missing."""
    try:
        overrides = msgspec.convert(read_json(run_dir.record)["overrides"], list[str])
        return shlex.join(["rankscope", "run", *(item for item in overrides if not item.startswith("run_dir="))])
    except (OSError, ValueError, KeyError, TypeError):
        return None
