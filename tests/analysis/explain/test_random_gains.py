"""Rules that random simulated traces do not reach, on random jobs of which a few lines know the truth.

No promise is more than what the job loses + 5 %.
"""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from rankscope.analysis import load
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import Table
from rankscope.analysis.explain.findings import RULES
from rankscope.analysis.explain.gather import facts_of
from rankscope.analysis.job import slow_steps
from rankscope.analysis.job.window import Window
from rankscope.analysis.measure.ceilings import Ceilings

from ..simulated_jobs import random_plan, simulate
from .made_facts import LIMITS, MS, activity, config, facts, steps

RULE = {rule.id: rule for rule in RULES}
SEEDS = range(25)


@pytest.mark.parametrize("seed", SEEDS)
def test_slow_steps_lose_what_was_added(seed: int) -> None:
    """Truth: the mean step with the planted time minus the mean step without it, with the same noise."""
    rng = np.random.default_rng(seed)
    ranks, count = int(rng.integers(1, 5)), int(rng.integers(40, 200))
    usual = rng.lognormal(0, 0.05, count) * 20 * MS
    added = np.zeros(count)
    chosen = rng.choice(np.arange(12, count), int(rng.integers(1, 6)), replace=False)
    added[chosen] = rng.uniform(40, 400, len(chosen)) * MS
    window = Window(
        ranks=list(range(ranks)),
        steps=list(range(count)),
        columns={"host_ns": np.tile(usual + added, (ranks, 1))},
        counted=np.arange(count) >= 11,
    )
    found = slow_steps.find(window, Limits(), {})
    assert found is not None
    assert found.lost_ms <= 1.05 * added[11:].mean() / MS + 0.1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_throttled_rank_costs_what_its_computing_costs(seed: int, tmp_path: Path) -> None:
    """Truth: the same job without the fault."""
    plan = random_plan(seed, "compute")
    plan.fault_rank = min(plan.fault_rank, plan.world - 1)
    job = simulate(plan, _folder(tmp_path, "job")).step_ns
    analysis = load(tmp_path / "job")
    plan.fault = "none"
    saved = job - simulate(plan, _folder(tmp_path, "mended")).step_ns
    known = {
        rank: {"clock_mhz": 1000.0 if rank == plan.fault_rank else 1980.0, "reasons": 4} for rank in range(plan.world)
    }
    found = RULE["throttled"].apply(structs.replace(facts_of(analysis, analysis.without), clocks=known), LIMITS)
    if analysis.verdict.rank == plan.fault_rank and found is not None:
        assert found.ranks == [plan.fault_rank] and found.recoverable_ms is not None
        assert found.recoverable_ms * MS <= 1.05 * saved + 0.2 * MS


def _folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


@pytest.mark.parametrize("seed", SEEDS)
def test_reducing_once_saves_what_the_other_micro_steps_expose(seed: int) -> None:
    """Truth: exposed transfers of all reductions but those of the last micro-step."""
    rng = np.random.default_rng(seed)
    micro, buckets = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    count = micro * buckets
    exposed = rng.integers(0, 5 * MS, (2, count))
    call = np.repeat(np.arange(2 * count), 2)
    values = exposed.ravel()[call]
    table = {
        "kind": np.zeros(4 * count, np.int32), "dtype": np.zeros(4 * count, np.int32), "call": call,
        "step": 4 + call // count, "rank": np.tile([0, 1], 2 * count), "bytes": np.full(4 * count, 10**6),
        "group_size": np.full(4 * count, 2), "start_ns": call * MS, "transfer_clockfree_ns": values,
        "exposed_ns": values, "scope": np.full(4 * count, -1), "group_id": np.zeros(4 * count, np.int32),
    }  # fmt: skip
    job = facts(
        steps(exposed_transfer=[60, 60]),
        calls=Table(table, {"kind": ["allreduce"], "dtype": ["Float"]}),
        config=config(gradient_accumulation=micro, ddp={"no_sync": False}),
    )
    found = RULE["sync_every_micro_step"].apply(job, LIMITS)
    truth = exposed[:, : count - buckets].sum(axis=1).mean() / MS
    assert found is not None and found.recoverable_ms is not None
    assert found.recoverable_ms == pytest.approx(min(truth, 60), abs=0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_tensor_cores_save_at_most_the_longest_rank_s_products(seed: int) -> None:
    """Truth: each rank's products become four times as fast, and the step is that of the slowest rank."""
    rng = np.random.default_rng(seed)
    wait, products = rng.integers(0, 30, 2).tolist(), rng.integers(50, 60, 2)
    table = steps(exposed_wait=wait)
    work = activity(kernel_ns=[100, 100], matmul_ns=(products * MS).tolist(), tensor_ns=[0, 0])
    work = work.with_columns(kernel_ns=np.full(4, 70 * MS))
    node = Ceilings(matmul_TFLOPs={"fp32": 100.0, "bf16": 400.0})
    found = RULE["low_tensor_core_use"].apply(facts(table, activity=work, ceilings=node), LIMITS)
    segments = [100 - each for each in wait]
    truth = max(segments) - max(own - 0.75 * part for own, part in zip(segments, products.tolist(), strict=True))
    assert found is not None and found.recoverable_ms is not None
    assert found.recoverable_ms <= 1.05 * truth + 0.01


@pytest.mark.parametrize("seed", SEEDS)
def test_restarts_of_the_loader_cost_what_the_slowest_rank_waits(seed: int) -> None:
    """Truth: the step without the data stall of the restart, on the slowest of the ranks, over two steps."""
    rng = np.random.default_rng(seed)
    stall, wait = rng.integers(20, 60, 2).tolist(), rng.integers(0, 15, 2).tolist()
    table = steps(data_stall=stall, exposed_wait=wait)
    columns = {**table.columns, "data_stall_ns": np.where(table["step"] == 4, table["data_stall_ns"], 0)}
    rows = [{"rank": rank, "epoch_restart_ms": float(stall[rank]), "outlier_steps": [4]} for rank in (0, 1)]
    found = RULE["first_batch"].apply(facts(Table(columns, table.words), loader=rows), LIMITS)
    segments = [100 - each for each in wait]
    truth = (max(segments) - max(own - part for own, part in zip(segments, stall, strict=True))) / 2
    if found is not None:
        assert found.recoverable_ms is not None and found.recoverable_ms <= 1.05 * truth + 0.01
