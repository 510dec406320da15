"""Gains by replay: no more than what really becomes faster without the fault, in jobs whose steps are known."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rankscope.analysis import load
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.explain import mending as module
from rankscope.analysis.explain.finding import Finding
from rankscope.analysis.explain.findings import RULES, limited, with_shared_time
from rankscope.analysis.explain.gain_limit import Room
from rankscope.analysis.explain.mending import Mending
from rankscope.analysis.result import Analysis

from ..replay.job_model import MS, US, Job, simulate, with_one

BY_ID = {rule.id: rule for rule in RULES}
LIMITS = Limits()
COMM = ("exposed_comm", "no_overlap", "large_last_bucket", "small_buckets")


def random_faults(seed: int) -> Job:
    """A job with some of: slow transfers, a slow loader, one slow loader, slow copies, slow hosts, synchronisation."""
    rng = np.random.default_rng([seed, 1612])
    world = int(rng.integers(2, 5))
    on = rng.random(6) < 0.4
    job = Job(
        world=world,
        buckets=int(rng.integers(1, 4)),
        kernels=int(rng.integers(3, 8)),
        compute=(int(rng.integers(100, 400)) * US,) * world,
        transfer=int(rng.integers(20, 60) if on[0] else 2) * 100 * US,
        host=int(rng.integers(100, 300) if on[1] else 10) * US,
        copy=int(rng.integers(3, 9)) * MS if on[2] else 0,
        releases=int(rng.integers(2, 5)) * MS if on[2] else 0,
        synchronises=bool(on[3]),
    )
    if on[4]:
        return replace(job, loader=(int(rng.integers(5, 40)) * MS,) * world)
    return replace(job, loader=with_one(job.loader, 0, 30 * MS)) if on[5] else job


def without(job: Job, finding: Finding) -> Job:
    """Return the job without what the finding is about."""
    if finding.id in COMM:
        return replace(job, transfer=1)
    if finding.id in ("host_gap", "host_bound_launch", "straggler_host"):
        return replace(job, host=1, releases=0)  # the host's time after a copy is its own, too
    if finding.id == "copy_bound":
        return replace(job, copy=0, releases=0)
    if finding.id == "sync_in_loop":
        return replace(job, synchronises=False)
    if finding.id in ("data_stall", "straggler_data"):
        return replace(job, loader=(min(job.loader) if len(finding.ranks) < job.world else 1,) * job.world)
    raise AssertionError(f"{finding.id} was not planted")


def mended(analysis: Analysis, plain_ms: float) -> list[Finding]:
    mending = Mending.of(analysis, plain_ms, BY_ID)
    assert mending is not None
    room = Room.of(analysis.analysed_steps, plain_ms)
    return with_shared_time(limited(analysis.findings, mending, False, room, LIMITS), mending)


@pytest.mark.parametrize("seed", range(24))
def test_no_finding_promises_more_than_its_fault_costs(seed: int, tmp_path: Path) -> None:
    job = random_faults(seed)
    step = simulate(job, tmp_path) / MS
    for item in mended(load(tmp_path), step):
        if item.recoverable_ms:
            saved = step - simulate(without(job, item)) / MS
            assert item.recoverable_ms <= saved + 0.03 * step, item


def one(analysis: Analysis, name: str) -> Finding:
    (found,) = [item for item in analysis.findings if item.id == name]
    return found


def test_transfers_bring_nothing_if_the_hosts_decide(tmp_path: Path) -> None:
    """The devices wait for every launch, also during a transfer that nothing hides."""
    job = Job(world=2, compute=(100 * US,) * 2, host=600 * US, transfer=MS, buckets=1)
    step = simulate(job, tmp_path) / MS
    saved = step - simulate(replace(job, transfer=1)) / MS
    analysis = load(tmp_path)
    parts = one(analysis, "exposed_comm").recoverable_ms
    assert parts is not None and parts > saved + 0.5
    found = {item.id: item for item in mended(analysis, step)}
    assert found["exposed_comm"].recoverable_ms == pytest.approx(saved, abs=0.01 * step)


@pytest.mark.parametrize("host", [274, 310])
def test_the_profiler_s_own_time_on_the_host_hides_no_gain(host: int, tmp_path: Path) -> None:
    """The devices decide how long a plain step takes. Under the profiler the hosts need as long as the devices.

    With the longer time they need longer, so the traced step is longer than the plain one.
    """
    job = Job(world=2, buckets=1, kernels=20, compute=(200 * US,) * 2, host=137 * US, transfer=4 * MS)
    step = simulate(job) / MS
    simulate(replace(job, host=host * US), tmp_path)
    saved = step - simulate(replace(job, transfer=1)) / MS
    found = {item.id: item for item in mended(load(tmp_path), step)}
    assert found["exposed_comm"].recoverable_ms == pytest.approx(saved, rel=0.02)


@pytest.mark.parametrize("loader", [6, 9])
def test_a_loader_that_only_the_profiler_slows_hides_no_gain(loader: int, tmp_path: Path) -> None:
    """It takes 3 ms in plain steps, which the devices hide."""
    job = Job(world=2, buckets=1, kernels=8, compute=(200 * US,) * 2, transfer=6 * MS, loader=(3 * MS,) * 2)
    step = simulate(job) / MS
    simulate(replace(job, loader=(loader * MS,) * 2), tmp_path)
    saved = step - simulate(replace(job, transfer=1)) / MS
    found = {item.id: item for item in mended(load(tmp_path), step)}
    assert found["exposed_comm"].recoverable_ms == pytest.approx(saved, rel=0.03)


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaFree", "hipMemcpyWithStream"])
def test_a_call_that_waits_without_saying_so_hides_no_gain(call: str, tmp_path: Path) -> None:
    job = Job(world=2, buckets=1, kernels=20, compute=(100 * US,) * 2, transfer=4 * MS, synchronises=True)
    step = simulate(job, tmp_path) / MS
    for path in tmp_path.glob("rank*.json"):
        path.write_text(path.read_text().replace("cudaStreamSynchronize", call))
    saved = step - simulate(replace(job, transfer=1)) / MS
    found = {item.id: item for item in mended(load(tmp_path), step)}
    assert found["exposed_comm"].recoverable_ms == pytest.approx(saved, rel=0.05)


def test_time_after_a_copy_may_be_the_memory_s_or_the_host_s_own(tmp_path: Path) -> None:
    """Rank 0 works on something else for 9 ms after its copy. The copy does not cost that; `host_gap` keeps it."""
    job = Job(world=4, copy=8 * MS, thinks=9 * MS, transfer=200 * US, host=10 * US, kernels=4, synchronises=True)
    step = simulate(job, tmp_path) / MS
    found = {item.id: item for item in mended(load(tmp_path), step)}
    for name, without_it in (("copy_bound", replace(job, copy=0)), ("host_gap", replace(job, thinks=0))):
        saved = step - simulate(without_it) / MS
        assert found[name].recoverable_ms == pytest.approx(saved, rel=0.05)


def test_a_smaller_gain_is_no_more_severe(tmp_path: Path) -> None:
    """A late rank that no plain step shows is medium at most, whatever the replay says."""
    job = Job(world=2, loader=(50 * US, 30 * MS))
    step = simulate(job, tmp_path) / MS
    late = msgspec.structs.replace(one(load(tmp_path), "straggler_data"), severity="medium", recoverable_ms=2 * step)
    mending = Mending.of(load(tmp_path), step, BY_ID)
    assert mending is not None
    (found,) = limited([late], mending, False, None, LIMITS)
    assert found.severity == "medium"
    assert found.recoverable_ms == pytest.approx(step - simulate(replace(job, loader=(50 * US,) * 2)) / MS, rel=0.03)


def test_without_launches_nothing_is_replayed(tmp_path: Path) -> None:
    """Without them nothing says that the devices wait for the loader."""
    step = simulate(Job(world=2, loader=(9 * MS,) * 2), tmp_path) / MS
    for path in tmp_path.glob("rank*.json"):
        trace = json.loads(path.read_text())
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event["cat"] != "cuda_runtime"]
        path.write_text(json.dumps(trace))
    assert Mending.of(load(tmp_path), step, BY_ID) is None


@pytest.mark.parametrize(
    ("job", "names", "shared"),
    [
        (Job(world=2, loader=(50 * US, 30 * MS)), ("straggler_data", "data_stall"), "straggler_data"),
        (
            Job(world=2, loader=(30 * MS,) * 2, transfer=5 * MS, synchronises=True),
            ("data_stall", "exposed_comm"),
            None,
        ),
    ],
)
def test_findings_share_time_if_mending_both_brings_no_more(
    job: Job, names: tuple[str, str], shared: str | None, tmp_path: Path
) -> None:
    step = simulate(job, tmp_path) / MS
    found = {item.id: item for item in mended(load(tmp_path), step)}
    assert [found[name].evidence.get("same_time_as") for name in names] == [None, shared]


def test_with_very_many_records_nothing_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = simulate(Job(world=2, loader=(9 * MS,) * 2), tmp_path) / MS
    analysis = load(tmp_path)
    monkeypatch.setattr(module, "_MOST_RECORDS", 10)
    assert Mending.of(analysis, step, BY_ID) is None
