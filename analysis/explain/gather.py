"""From an analysis to its findings: gathers `Facts` of all ranks, and applies the rules."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.analysis.core.table import Table
from rankscope.analysis.explain import findings
from rankscope.analysis.explain.facts import Facts, Finding
from rankscope.analysis.measure import ceilings
from rankscope.analysis.measure.loader import loader_waits
from rankscope.conf import ConfigError, RunConfig, RunDir, load_config
from rankscope.conf.files import read_json
from rankscope.conf.user_cache import cache_folder

if TYPE_CHECKING:
    from rankscope.analysis.result import Analysis


def diagnose(analysis: "Analysis") -> list[Finding]:
    """Return the findings over the analysed steps; a run folder adds its settings and its node's ceilings."""
    return findings.find(facts_of(analysis), analysis.options.limits)


def facts_of(analysis: "Analysis") -> Facts:
    """Gather what the rules look at; rows of the activity are those of the steps."""
    measured = [data for data in analysis.ranks if data.complete] or analysis.ranks
    chosen = analysis.steps_analysed
    activity = Table.concat([_of_rank(data.activity, data.rank) for data in measured])
    syncs = Table.concat([_of_rank(data.syncs, data.rank) for data in measured])
    steps = analysis.step_table
    return Facts(
        steps=steps.take(np.isin(steps["step"], chosen)),
        verdict=analysis.verdict,
        cause_share=analysis.options.thresholds.cause_share,
        calls=analysis.calls,
        activity=activity.take(np.isin(activity["step"], chosen)),
        syncs=syncs.take(np.isin(syncs["step"], chosen)),
        clocks={} if analysis.run_dir is None else _clocks(analysis.run_dir),
        loader=loader_waits(measured),
        config=None if analysis.run_dir is None else config_of(analysis.run_dir),
        ceilings=analysis.ceilings,
        gpu=all(data.mode == "device" for data in analysis.ranks),
    )


def _of_rank(table: Table, rank: int) -> Table:
    return table.with_columns(rank=np.full(len(table), rank))


def config_of(run_dir: RunDir) -> RunConfig | None:
    """Return the settings of a run of the reference model; None where they cannot be read, or a script decided them."""
    try:
        config = load_config(run_dir.config)
    except ConfigError:
        return None  # the summary says so
    return config if config.script is None else None


def ceilings_of(path: Path | None, run_dir: RunDir | None) -> ceilings.Ceilings | None:
    """Return the ceilings in a file, else those that the cache has of the run's node."""
    if path is not None:
        return ceilings.load(path)
    return None if run_dir is None else ceilings.of_run(rank_infos(run_dir), cache_folder())


def rank_infos(run_dir: RunDir, passes: tuple[str, ...] = ("plain", "torch", "light", "nsys")) -> list[dict[str, Any]]:
    """Return rank.json of every rank of the first pass that has them."""
    for name in passes:
        infos = []
        for rank_dir in run_dir.for_pass(name).ranks():
            try:
                infos.append(read_json(rank_dir.info))
            except (OSError, ValueError):
                break
        if infos:
            return infos
    return []


def _clocks(run_dir: RunDir) -> dict[int, dict[str, float]]:
    """Return each rank's mean clock (MHz) and all reasons to throttle over the counted steps, where NVML was read."""
    import pyarrow.parquet as pq

    found = {}
    for name in ("plain", "torch", "light", "nsys"):
        for rank_dir in run_dir.for_pass(name).ranks():
            try:
                rows = pq.read_table(rank_dir.steps).to_pylist()
            except (OSError, ValueError):
                continue
            counted = [row for row in rows if row.get("phase") in ("measured", "active") and row.get("gpu_clock_mhz")]
            reasons = 0
            for row in counted:
                reasons |= row.get("gpu_throttle_reasons") or 0
            if counted:
                mean = sum(row["gpu_clock_mhz"] for row in counted) / len(counted)
                found[rank_dir.rank] = {"clock_mhz": mean, "reasons": reasons}
        if found:
            break
    return found
