"""A run with no traced pass: what its plain pass says, in the shape of `summary.json`; all else is null or empty."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from rankscope.analysis.read import pass_steps
from rankscope.analysis.show.terminal import rate_words
from rankscope.analysis.verify import plain_pass
from rankscope.conf import ConfigError, RunDir, RunDirError, load_config

_WHY = "not traced: only throughput is known; record more with passes=[plain,torch]"


def summarise_untraced(paths: Sequence[Path]) -> dict[str, Any] | None:
    """Return the summary of a completed run whose configuration asks for no traced pass; None for anything else."""
    run_dir = RunDir(paths[0])
    if len(paths) != 1 or not run_dir.record.exists():
        return None
    try:
        config, completed = load_config(run_dir.config), run_dir.read_record().get("status") == "completed"
    except (ConfigError, RunDirError):
        return None  # the reader of traces says what is wrong
    found = pass_steps.read_pass(run_dir.for_pass("plain"), "measured")
    if config.passes != ["plain"] or not completed or found is None:
        return None
    return {
        "schema": 1,
        "status": "ok",
        "source": None,
        "warnings": [{"kind": "not_traced", "level": "info", "rank": None, "file": None, "message": _WHY}],
        "world_size": config.world_size,
        "ranks": sorted(found.ranks),
        "missing_ranks": sorted(set(range(config.world_size)) - set(found.ranks)),
        "steps": [],
        "alignment": None,
        "per_rank": [],
        "totals": [],
        "collectives": [],
        "stragglers": {"verdict": "undetermined", "rank": None, "reason": _WHY, "per_step": []},
        "findings": [],
        "throughput": plain_pass.throughput(found, config),
        "profiler_overhead": {"torch": None, "light": None, "nsys": None},
        "versions": {"rankscope": version("rankscope")},
    }


def show_untraced(summary: dict[str, Any], console: Console) -> None:
    """Print the throughput, and why there is no more."""
    ranks = summary["world_size"]
    rate = summary["throughput"]
    console.print(f"{ranks} rank{'s' if ranks > 1 else ''}, {_WHY}", markup=False)
    console.print("No step was measured on every rank." if rate is None else rate_words(rate), style="bold")
