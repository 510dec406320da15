"""The tables that are written next to the summary, by call, step, operator, kernel and module."""

import msgspec

from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.core.table import Table
from rankscope.analysis.pipeline import load
from rankscope.analysis.read.run_settings import config_of
from rankscope.analysis.result import Analysis
from rankscope.analysis.tables import buckets, calls_and_steps, operators


def tables(analysis: Analysis) -> dict[str, Table]:
    """Return the tables by file name (docs/tables.md)."""
    with_ops, with_mods = with_operators(analysis), with_modules(analysis)
    walks = operators.walk(with_ops)
    of_modules = walks if with_mods is with_ops else operators.walk(with_mods)
    found = {
        "collectives": calls_and_steps.collectives(analysis),
        "steps": calls_and_steps.steps(analysis),
        "segments": calls_and_steps.segments(analysis),
        "operators": operators.operators(with_ops, walks),
        "kernels_by_name": operators.kernels_by_name(analysis),
        "modules": operators.modules(with_mods, of_modules),
        "buckets": buckets.buckets(analysis),
    }
    more = {"roofline": roofline_of(analysis), "memory": memory_of_window(analysis)}
    return found | {name: table for name, table in more.items() if table is not None}


def memory_of_window(analysis: Analysis) -> Table | None:
    """Return the timeline of memory; None if the run was not asked for it (`profile.profile_memory`)."""
    from rankscope.analysis.tables.memory_timeline import memory_timeline

    config = None if analysis.run_dir is None else config_of(analysis.run_dir)
    return memory_timeline(analysis) if config is not None and config.profile.profile_memory else None


def with_operators(analysis: Analysis) -> Analysis:
    """Return an analysis with operators and ranges: if the light pass was analysed, that of the torch pass."""
    return _of_pass(analysis, "torch") if analysis.pass_name == "light" else analysis


def with_modules(analysis: Analysis) -> Analysis:
    """Return an analysis with the ranges of modules, if the run was asked for them (`profile.modules`)."""
    config = None if analysis.run_dir is None else config_of(analysis.run_dir)
    if analysis.run_dir is None or config is None or not config.profile.modules:
        return with_operators(analysis)
    name = analysis.run_dir.detailed.name
    return analysis if analysis.pass_name == name else _of_pass(analysis, name)


def _of_pass(analysis: Analysis, name: str) -> Analysis:
    if analysis.run_dir is None:
        return analysis
    try:
        found = load(analysis.run_dir.for_pass(name).path, options=analysis.options)
    except AnalysisError:
        return analysis  # the tables are empty if it has no operators or ranges
    return msgspec.structs.replace(found, run_dir=analysis.run_dir)


def roofline_of(analysis: Analysis) -> Table | None:
    """Return the roofline of the first rank; None if shapes and FLOPs were not recorded."""
    from rankscope.analysis.tables.roofline import roofline

    config = None if analysis.run_dir is None else config_of(analysis.run_dir)
    if analysis.run_dir is None or config is None:
        return None
    ranks = analysis.run_dir.detailed.ranks()
    return roofline(ranks[0], config, analysis.ceilings) if ranks else None
