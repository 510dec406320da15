"""Analyses run folders and traces, and makes tables, findings and reports. Never imports torch.

In a notebook: `rankscope.analysis.load("runs/...")` gives an `Analysis`, whose tables are DataFrames.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.analysis.core.notices import AnalysisError, Notice
    from rankscope.analysis.options import Options
    from rankscope.analysis.pipeline import load
    from rankscope.analysis.result import Analysis
    from rankscope.analysis.show.summary import summarise
    from rankscope.analysis.watched_steps import monitor_steps

__all__ = ["Analysis", "AnalysisError", "Notice", "Options", "load", "monitor_steps", "summarise"]

_HOMES = {
    "Analysis": "result",
    "Options": "options",
    "AnalysisError": "core.notices",
    "Notice": "core.notices",
    "monitor_steps": "watched_steps",
    "summarise": "show.summary",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that commands start faster."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'rankscope.analysis' has no attribute {name!r}")
    home = _HOMES.get(name, "pipeline")
    return getattr(importlib.import_module(f"rankscope.analysis.{home}"), name)
