"""Run folders and traces in; tables, findings and reports out. Never imports torch.

In a notebook: `rankscope.analysis.load("runs/...")` gives an `Analysis`, whose tables are DataFrames.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.analysis.errors import AnalysisError, Notice
    from rankscope.analysis.pipeline import Analysis, Options, load
    from rankscope.analysis.summary import summarise
    from rankscope.analysis.watched import monitor_steps

__all__ = ["Analysis", "AnalysisError", "Notice", "Options", "load", "monitor_steps", "summarise"]

_HOMES = {"AnalysisError": "errors", "Notice": "errors", "monitor_steps": "watched", "summarise": "summary"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a command that needs none of it starts faster."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'rankscope.analysis' has no attribute {name!r}")
    home = _HOMES.get(name, "pipeline")
    return getattr(importlib.import_module(f"rankscope.analysis.{home}"), name)
