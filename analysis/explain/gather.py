"""Gathers the `Facts` of all ranks: from the steps, and from the run folder if there is one."""

import numpy as np

from rankscope.analysis.core.table import Table
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.measure.dimensions import names_by_group
from rankscope.analysis.measure.loader import loader_waits
from rankscope.analysis.measure.pipeline_stages import pipelines
from rankscope.analysis.measure.recording import Recording
from rankscope.analysis.read.pass_steps import read_steps
from rankscope.analysis.read.run_settings import config_of
from rankscope.analysis.verify.without_profiler import Unprofiled
from rankscope.conf import RunDir
from rankscope.conf.contract import PASSES


def facts_of(recording: Recording, without: Unprofiled) -> Facts:
    """Return the input of the rules; `activity` has the same rows as `steps`."""
    ranks = [data for data in recording.ranks if data.complete] or recording.ranks
    run_dir, stretch = recording.run_dir, recording.stretch
    chosen = recording.steps_analysed if stretch is None else np.unique(stretch["step"]).tolist()
    # A rank without steps beside others with steps has activity of its whole window, and no row in `steps`.
    recorded = [data for data in ranks if (data.stretch is None) == (stretch is None)]
    activity = Table.concat([_of_rank(data.activity, data.rank) for data in recorded])
    syncs = Table.concat([_of_rank(data.syncs, data.rank) for data in recorded])
    steps = recording.step_table if stretch is None else stretch
    return Facts(
        steps=steps.take(np.isin(steps["step"], chosen)),
        verdict=recording.verdict,
        calls=recording.calls,
        activity=activity.take(np.isin(activity["step"], chosen)),
        syncs=syncs.take(np.isin(syncs["step"], chosen)),
        clocks={} if run_dir is None else _clocks(run_dir),
        loader=loader_waits(ranks),
        config=None if run_dir is None else config_of(run_dir),
        ceilings=recording.ceilings,
        gpu=recording.on_gpu,
        profiler=recording.profiler,
        overhead=without.overhead[recording.profiler],
        overhead_at_least=(without.overhead_interval.get(recording.profiler) or (float("inf"), 0.0))[0],
        light_tried=without.overhead["light"] is not None,
        cpu=without.cpu,
        epochs=None if run_dir is None else _epochs(run_dir, recording.profiler),
        loader_cpu=without.loader_cpu,
        job=without.verdict,
        slow=without.slow,
        model=ranks[0].model if all(data.model == ranks[0].model for data in ranks) else None,
        stretch=stretch is not None,
        pipelines=pipelines(recording),
        dimension_of=names_by_group(recording),
    )


def _of_rank(table: Table, rank: int) -> Table:
    return table.with_columns(rank=np.full(len(table), rank))


def _epochs(run_dir: RunDir, name: str) -> set[tuple[int, int]] | None:
    """Return step and rank wherever the loader began an epoch in a pass; None if that was not recorded of a rank."""
    found: set[tuple[int, int]] = set()
    for rank_dir in run_dir.for_pass(name).ranks():
        try:
            table = read_steps(rank_dir)
        except (OSError, ValueError):
            return None
        began = table["first_of_epoch"].to_pylist()
        found |= {(step, rank_dir.rank) for step, first in zip(table["step"].to_pylist(), began, strict=True) if first}
    return found


def _clocks(run_dir: RunDir) -> dict[int, dict[str, float]]:
    """Return each rank's mean clock (MHz) and all throttle reasons over the counted steps, if NVML was read."""
    found = {}
    for name in PASSES:
        for rank_dir in run_dir.for_pass(name).ranks():
            try:
                rows = read_steps(rank_dir).to_pylist()
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
