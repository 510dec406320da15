"""Every rule that promises milliseconds, on random jobs: never more than what the job gains without the fault + 5 %.

The truth is a second simulation of the same job without the fault, or without any time for reducing gradients.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.analysis import load, summarise

from .simulated_jobs import MS, US, Plan, simulate

SEEDS = int(os.environ.get("RANKSCOPE_SEEDS", "25"))
TOLERANCE = 1.05
ROUND = 200 * US  # the jobs' own small waits, and the jitter of their ends
RULES = {
    "data": ("data_stall", "first_batch"),
    "host": ("host_gap", "host_bound_launch"),
    "copy": ("copy_bound",),
    "sync": ("sync_in_loop",),
    "malloc": ("memory_pressure",),
    "transfer": (
        "exposed_comm", "no_overlap", "large_last_bucket", "small_buckets", "sync_every_micro_step",
        "unused_parameters_scan",
    ),
}  # fmt: skip


def random_faults(seed: int, kinds: list[str]) -> Plan:
    rng = np.random.default_rng([seed, 3])
    world, buckets = int(rng.integers(2, 5)), int(rng.choice([1, 2, 3, 20]))
    everywhere = {kind: int(rng.integers(1, 40)) * MS // 4 for kind in kinds}
    if "transfer" in everywhere:
        everywhere["transfer"] //= buckets
    return Plan(
        world=world,
        steps=5,
        buckets=buckets,
        seed=seed,
        end_jitter_ns=int(rng.integers(0, 20)) * US,
        left_over=False,
        everywhere=everywhere,
    )


def step_ns(plan: Plan, folder: Path) -> float:
    folder.mkdir()
    return simulate(plan, folder).step_ns


def mended(plan: Plan, kind: str, folder: Path) -> float:
    """Return the step (ns) of the job without this fault."""
    left = {name: amount for name, amount in plan.everywhere.items() if name != kind}
    other = Plan(**{name: getattr(plan, name) for name in Plan.__dataclass_fields__} | {"everywhere": left})
    other.transfers = kind != "transfer"
    return step_ns(other, folder)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_rule_promises_more_than_its_fault_costs(seed: int, tmp_path: Path) -> None:
    """One to three faults at once, on every rank: each is found, each promise holds, and nobody is late."""
    rng = np.random.default_rng([seed, 4])
    kinds = rng.permutation(list(RULES))[: int(rng.integers(1, 4))].tolist()
    plan = random_faults(seed, kinds)
    job = step_ns(plan, tmp_path / "job")
    summary = summarise(load(tmp_path / "job"))
    findings: list[dict[str, Any]] = summary["findings"]
    assert summary["stragglers"]["verdict"] == "none"
    for kind, rules in RULES.items():
        saved = job - mended(plan, kind, tmp_path / kind)
        for item in findings:
            if item["id"] in rules and item["recoverable_ms"] is not None:
                assert item["recoverable_ms"] * MS <= TOLERANCE * saved + ROUND, (item, plan)
        if kind in kinds and saved > 0.06 * job:
            assert {item["id"] for item in findings} & set(rules), (kind, plan)
    known = {rule for rules in RULES.values() for rule in rules}
    others = [item for item in findings if item["id"] not in known and item["recoverable_ms"]]
    assert not others, "a rule that promises time needs a fault here"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_clean_job_has_nothing_above_low(seed: int, tmp_path: Path) -> None:
    plan = random_faults(seed, [])
    plan.transfers = False  # reducing without a bandwidth to speak of, so that none of it is exposed
    step_ns(plan, tmp_path / "job")
    for item in summarise(load(tmp_path / "job"))["findings"]:
        assert item["severity"] == "low", (item, plan)
