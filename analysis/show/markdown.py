"""`report.md`: the summary as text that can be pasted into an issue. Input: `summary.json`. Output: Markdown."""

import shlex

import msgspec

from rankscope.analysis.core.json import Json
from rankscope.analysis.measure.breakdown import PARTS
from rankscope.analysis.show import pages
from rankscope.analysis.show.words import (
    clock_words,
    device_words,
    gain_words,
    per_words,
    ranks_words,
    rare_words,
    rate_words,
    recorded_words,
    run_words,
    slow_words,
    slowdowns,
    unsplit_words,
    verdict_sentence,
    warning_lines,
)
from rankscope.conf import ConfigError, RunDir, load_config
from rankscope.conf.files import read_json
from rankscope.conf.plain_text import path_text


def report(summary: Json, run_dir: RunDir | None) -> str:
    """Return the report; `run_dir` adds the command that repeats the run."""
    return pages.render(
        "report.md.jinja",
        unknown="?",
        s=summary,
        title=f"rankscope: {path_text(run_dir.path.resolve().name)}" if run_dir else "rankscope",
        run=run_words(summary),
        recorded=recorded_words(summary),
        verdict=verdict_sentence(summary),
        slow=slow_words(summary),
        rare=rare_words(summary),
        rate="; ".join([rate_words(summary), *slowdowns(summary)]) if summary["throughput"] else "",
        device=device_words(summary["per_rank"]),
        per=per_words(summary),
        gain=gain_words,
        ranks=ranks_words,
        unsplit=unsplit_words(summary["per_rank"]),
        parts=PARTS,
        clock=clock_words(summary["alignment"]),
        warnings=warning_lines(summary),
        command=None if run_dir is None else command(run_dir),
    )


def command(run_dir: RunDir) -> str | None:
    """Return the command that repeats a run; None if its record is missing."""
    try:
        overrides = msgspec.convert(read_json(run_dir.record)["overrides"], list[str])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    words = [item for item in overrides if not item.startswith(("run_dir=", "script=", "script_args="))]
    try:
        config = load_config(run_dir.config)
    except ConfigError:
        config = None
    if config is None or config.script is None:
        return " ".join(map(_quoted, ["rankscope", "run", *words]))
    arguments = ["--", *config.script_argv] if config.script_argv else []
    return " ".join(map(_quoted, ["rankscope", "run", f"script={config.script}", *words, *arguments]))


def _quoted(word: str) -> str:
    """Quote a word for a shell, without a nest of quotes if it has single ones only."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\!') else shlex.quote(word)
