"""`report.md`: the summary as a page that can be pasted into an issue. `summary.json` in, text out."""

import json
import shlex
from importlib.resources import files
from typing import Any

import jinja2

from rankscope.analysis.breakdown import PARTS
from rankscope.analysis.show import advice_of, byte_size, slowdown, verdict_sentence, warning_lines
from rankscope.conf import RunDir

Json = dict[str, Any]


def report(summary: Json, run_dir: RunDir | None) -> str:
    """Return the report as Markdown; `run_dir` adds how to run it again."""
    environment = jinja2.Environment(autoescape=False, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {
        "ms": lambda value: "?" if value is None else f"{value:.2f}",
        "percent": lambda value: "-" if value is None else f"{value:.0%}",
        "slowdown": lambda value: slowdown("torch.profiler", value),
        "size": lambda value: "?" if value is None else byte_size(value),
        "advice": advice_of,
        "capitalize_first": lambda text: text[:1].upper() + text[1:],
    }
    template = environment.from_string(files("rankscope.analysis").joinpath("templates/report.md.jinja").read_text())
    return template.render(
        s=summary,
        title=f"rankscope: {run_dir.path.resolve().name}" if run_dir else "rankscope",
        verdict=verdict_sentence(summary),
        rate=summary["throughput"],
        parts=PARTS,
        warnings=warning_lines(summary),
        command=None if run_dir is None else _command(run_dir),
    )


def _command(run_dir: RunDir) -> str | None:
    try:
        overrides = json.loads(run_dir.record.read_text())["overrides"]
        return shlex.join(["rankscope", "run", *(item for item in overrides if not item.startswith("run_dir="))])
    except (OSError, ValueError, KeyError, TypeError):
        return None
