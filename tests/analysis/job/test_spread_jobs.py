"""Jobs that are not DDP, recorded on two H200s by `benchmarks/evidence.py --only parallel`: who is late, what was sent.

Their ranks wait for each other in the forward pass too. The traces are without operators.
"""

import gzip
import json
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rankscope.analysis import Analysis, load, summarise
from rankscope.analysis.core.limits import Limits
from rankscope.analysis.core.table import Table
from rankscope.analysis.explain.as_changes import changes_of
from rankscope.analysis.job.late_rank import JobVerdict, judge
from rankscope.analysis.job.timed_calls import TimedCalls
from rankscope.analysis.job.traced import Traced
from rankscope.analysis.job.window import Window
from rankscope.analysis.replay.predict import predict
from rankscope.analysis.verify.without_profiler import _held

from .archives import unpack


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jobs; those of larger batches, which the GPUs set the pace of, in a folder of their own."""
    folder = tmp_path_factory.mktemp("spread")
    unpack("two_gpus/paced_by_gpus", folder / "paced_by_gpus")
    return unpack("two_gpus/spread", folder)


# The median plain step with the fault and, in another run, without:
# 117.66 and 106.55; 143.80 and 102.93; 228.95 and 219.64 ms.
@pytest.mark.parametrize(
    ("job", "rank", "lost_ms"),
    [("fsdp_late", 1, 11.11), ("uneven_experts", 0, 40.87), ("paced_by_gpus/tp_late", 1, 9.31)],
)
def test_a_rank_that_computes_longer_is_late(job: str, rank: int, lost_ms: float, recorded: Path) -> None:
    summary = summarise(load(recorded / job))
    late = summary["stragglers"]
    assert (late["window"], late["verdict"], late["rank"], late["cause"]) == ("timed", "persistent", rank, "compute")
    (finding,) = [item for item in summary["findings"] if item["id"] == "straggler_compute"]
    assert finding["ranks"] == [rank] and 0.75 * lost_ms <= finding["recoverable_ms"] <= 1.03 * lost_ms


def test_a_trace_alone_adds_up_what_the_others_lose(recorded: Path, tmp_path: Path) -> None:
    """As much as NCCL's own durations without a profiler differ: 32 calls in each step."""
    passes = recorded / "uneven_experts" / "passes"
    took = [
        json.loads((passes / "timed" / "ranks" / str(rank) / "calls.json").read_bytes())["duration_ns"]
        for rank in (0, 1)
    ]
    by_step = (np.array(took[1]) - np.array(took[0])).reshape(-1, 32).sum(axis=1) * 1e-6
    for rank in (0, 1):
        trace = passes / "torch" / "ranks" / str(rank) / "trace.json.gz"
        shutil.copy(trace, tmp_path / f"rank{rank}.json.gz")
    summary = summarise(load(tmp_path))
    late = summary["stragglers"]
    assert (late["window"], late["verdict"], late["rank"], late["cause"]) == ("trace", "persistent", 0, "compute")
    assert late["lateness_ms"] == pytest.approx(np.median(by_step), rel=0.05)
    (finding,) = [item for item in summary["findings"] if item["id"] == "straggler_compute"]
    assert 0.75 * 40.87 <= finding["recoverable_ms"] <= 1.03 * 40.87


@pytest.mark.parametrize(("job", "passes"), [("pp_gpipe", 8), ("pp_late", 8), ("pp_interleaved", 16)])
def test_bubbles_on_gpus_are_those_of_the_closed_form(job: str, passes: int, recorded: Path) -> None:
    """`passes`: forward passes of a rank in a step. Kernels of one stream follow each other, so they add up."""
    folder = recorded / "paced_by_gpus" / job
    compute = [kernels_ms(folder / "passes" / "torch" / "ranks" / str(rank) / "trace.json.gz") for rank in (0, 1)]
    summary = summarise(load(folder))
    (pipeline,) = summary["pipelines"]
    assert pipeline["stages"][0]["bubble_ms"] == pytest.approx(compute[0] / passes + compute[1] - compute[0], rel=0.02)
    assert pipeline["even_share"] == pytest.approx(1 / (passes + 1), abs=1e-4)
    assert summary["stragglers"]["rank"] is None
    (finding,) = [item for item in summary["findings"] if item["id"] == "uneven_stages"]
    assert finding["ranks"] == [1]


def kernels_ms(trace: Path) -> float:
    """Return the time of the kernels that do not communicate, per step of the four recorded ones."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    took = [event["dur"] for event in events if event.get("cat") == "kernel" and "nccl" not in event["name"]]
    return float(sum(took)) / 1000 / 4


def test_experts_with_as_much_work_each_are_replayed(recorded: Path) -> None:
    """The finding stands for an even spread. The step of the job with even experts was 102.93 ms, in another run."""
    analysis = load(recorded / "uneven_experts")
    changes = changes_of(["straggler_compute"], analysis.findings, analysis.world_size, gpu=True)
    assert changes == ["compute=mean"]
    assert predict(analysis, changes, analysis.without.step_ms).predicted_ms == pytest.approx(102.93, rel=0.05)


def test_nobody_is_named_if_a_host_may_be_the_reason(recorded: Path) -> None:
    """Rank 1 computes for 10 ms more, but the hosts bind this job, and profiling changes it too much to explain it."""
    late = summarise(load(recorded / "tp_late"))["stragglers"]
    assert (late["verdict"], late["rank"]) == ("none", None)
    assert late["reason"].startswith("rank 1 comes ")


def by_launch(path: Path) -> dict[tuple[str, str], float]:
    """Return the time (us) of what collectives launched, by collective and by category, from the events alone."""
    events = [event for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if event["ph"] == "X"]
    calls = {e["args"]["correlation"]: e for e in events if e["cat"] in ("cuda_runtime", "cuda_driver")}
    records = [event for event in events if event["name"] == "record_param_comms"]
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        if event["cat"] in ("kernel", "gpu_memcpy") and event["args"]["correlation"] in calls:
            call = calls[event["args"]["correlation"]]
            for record in records:
                since = float(call["ts"]) - float(record["ts"])
                if record["tid"] == call["tid"] and 0 <= since < record["dur"]:
                    found[record["args"]["Collective name"], event["cat"]] += event["dur"]
    return found


KINDS = {"_allgather_base": "allgather", "_reduce_scatter_base": "reducescatter"}


@pytest.mark.parametrize(("job", "gathers"), [("fsdp_kernels", "kernel"), ("fsdp_copy_engines", "gpu_memcpy")])
def test_gathers_count_whatever_they_run_on(job: str, gathers: str, recorded: Path) -> None:
    calls = load(recorded / job).calls
    for rank in (0, 1):
        wanted = by_launch(recorded / job / "passes" / "torch" / "ranks" / str(rank) / "trace.json.gz")
        assert set(wanted) == {("_allgather_base", gathers), ("_reduce_scatter_base", "kernel")}
        own = calls.take(calls["rank"] == rank)
        found: Counter[str] = Counter()
        for kind, took in zip(own.texts("kind"), (own["end"] - own["start"]).tolist(), strict=True):
            found[str(kind)] += took
        sums = {KINDS[name]: took for (name, _), took in wanted.items()}
        assert {kind: ns / 1000 for kind, ns in found.items()} == pytest.approx(sums, abs=0.5)


def test_copy_engines_overlap_like_kernels(recorded: Path) -> None:
    kernels, engines = (overlap(load(recorded / f"fsdp_{kind}")) for kind in ("kernels", "copy_engines"))
    assert engines == pytest.approx(kernels, abs=0.02)


def overlap(analysis: Analysis) -> float:
    steps = analysis.step_table
    return 1 - float(steps["exposed_comm_ns"].sum()) / float(steps["comm_ns"].sum())


def calls(kind: str, durations: list[list[float]]) -> TimedCalls:
    count = len(durations[0])
    return TimedCalls(
        ranks=[0, 1], group=["0"] * count, kind=[kind] * count, bytes=[1] * count, seq=list(range(count)),
        step=np.zeros(count, int), duration_ns=np.array(durations),
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "late"), [("alltoall", 6.0), ("allgather", 6.0), ("allreduce", 4.0)])
def test_waits_add_up_if_their_result_is_computed_with(kind: str, late: float) -> None:
    """Rank 1 waits 4, 3 and 1, and nothing computes in three quarters of it. DDP's buckets do not add up."""
    found = calls(kind, [[1.0, 1.0, 1.0], [5.0, 4.0, 2.0]]).lateness([0, 1], [0], exposed_share=0.75)
    assert found.tolist() == [[late], [0.0]]


STEPS = 32


def window(ranks: int, **parts: list[float]) -> Window:
    """Equal steps; ms, by rank. All hosts lead."""
    parts = {"optimizer": [1.0] * ranks, "optimizer_host": [1.0] * ranks, **parts}
    columns = {f"{name}_ns": np.repeat(np.array(ms)[:, None], STEPS, 1) * 1e6 for name, ms in parts.items()}
    columns["host_ahead"] = np.ones((ranks, STEPS))
    return Window(
        ranks=list(range(ranks)), steps=list(range(STEPS)), columns=columns, counted=np.arange(STEPS) >= 2
    )  # fmt: skip


def every_step(ranks: int, *rows: tuple[str, str, dict[int, float]]) -> TimedCalls:
    """The same calls in each step: group, kind, and duration (ms) by rank."""
    duration = np.array([[by.get(rank, np.nan) * 1e6 for _, _, by in rows] * STEPS for rank in range(ranks)])
    count = len(rows) * STEPS
    return TimedCalls(
        ranks=list(range(ranks)), group=[group for group, _, _ in rows] * STEPS,
        kind=[kind for _, kind, _ in rows] * STEPS, bytes=[1] * count, seq=list(range(count)),
        step=np.repeat(np.arange(STEPS), len(rows)), duration_ns=duration,
    )  # fmt: skip


def traced(ranks: int, longer_ms: float) -> Traced:
    return Traced(compute_ns={rank: (30 + longer_ms * (rank == 1)) * 1e6 for rank in range(ranks)}, exposed_share=1.0)


@pytest.mark.parametrize("layers", [1, 8])
def test_a_rank_that_is_held_up_in_another_group_is_not_named(layers: int) -> None:
    """Tensor parallel {0, 1} and {2, 3}, data parallel across. Rank 1 computes 12 ms more, so 0 and 1 come late."""
    tensor: list[tuple[str, str, dict[int, float]]] = [
        ("tensor 0, 1", "allreduce", {0: 0.5 + 12 / layers, 1: 0.5}), ("tensor 2, 3", "allreduce", {2: 0.5, 3: 0.5}),
    ]  # fmt: skip
    data: list[tuple[str, str, dict[int, float]]] = [
        ("data 0, 2", "allreduce", {0: 0.5, 2: 12.5}), ("data 1, 3", "allreduce", {1: 0.5, 3: 12.5}),
    ]  # fmt: skip
    steps = window(
        4, device=[100] * 4, host=[100] * 4, forward=[52, 52, 40, 40], backward=[45, 45, 57, 57],
        backward_compute=[44] * 4, forward_host=[3] * 4, backward_host=[3] * 4,
    )  # fmt: skip
    found = judge(steps, every_step(4, *tensor * layers, *data), Limits(), steps)
    assert (found.verdict, found.rank, found.cause) == ("persistent", 1, "compute")
    assert found.gain_ns == pytest.approx(12e6, rel=0.01)


def test_waits_at_the_same_time_in_two_groups_count_once() -> None:
    steps = window(
        2, device=[64] * 2, host=[64] * 2, forward=[30] * 2, backward=[33] * 2, backward_compute=[33] * 2,
        forward_host=[3] * 2, backward_host=[3] * 2,
    )  # fmt: skip
    both = every_step(2, ("a", "allgather", {0: 10.5, 1: 0.5}), ("b", "allgather", {0: 10.5, 1: 0.5}))
    found = judge(steps, both, Limits(), steps, traced(2, 10))
    assert (found.rank, found.cause) == (1, "compute") and found.gain_ns == pytest.approx(10e6)


def test_experts_get_what_one_of_them_is_relieved_of() -> None:
    steps = window(
        2, device=[64] * 2, host=[64] * 2, forward=[30] * 2, backward=[33] * 2, backward_compute=[33] * 2,
        forward_host=[3] * 2, backward_host=[3] * 2,
    )  # fmt: skip
    rows: list[tuple[str, str, dict[int, float]]] = [("e", "alltoall", {0: 10.5, 1: 0.5})]
    rows += [("f", "allgather", {0: 0.5, 1: 0.5})] * 4
    found = judge(steps, every_step(2, *rows), Limits(), steps, traced(2, 10))
    assert found.rank == 1 and found.gain_ns == pytest.approx(5e6)


def test_the_hosts_limit_the_gain_although_others_wait_within_their_passes() -> None:
    """The hosts need 59 ms a step, the devices 41 without waits: without its 30 ms more the job takes 59 of 71 ms."""
    steps = window(
        2, device=[71] * 2, host=[71] * 2, forward=[45] * 2, backward=[25] * 2, backward_compute=[25] * 2,
        forward_host=[29] * 2, backward_host=[29] * 2,
    )  # fmt: skip
    found = judge(
        steps, every_step(2, ("t", "allreduce", {0: 30.5, 1: 0.5})), Limits(), steps, traced(2, 30)
    )  # fmt: skip
    assert found.rank == 1 and found.gain_ns == pytest.approx(12e6)


def test_after_the_fix_the_next_rank_is_the_latest() -> None:
    """Ranks 1 and 2 are late by 12 and 5 ms."""
    steps = window(
        4, device=[60] * 4, host=[60] * 4, forward=[20, 32, 25, 20], backward=[37, 25, 32, 37],
        backward_compute=[24] * 4, forward_host=[3] * 4, backward_host=[3] * 4,
    )  # fmt: skip
    found = judge(
        steps, every_step(4, ("0", "allreduce", {0: 12.5, 1: 0.5, 2: 7.5, 3: 12.5})), Limits(), steps
    )  # fmt: skip
    assert found.rank == 1 and found.gain_ns == pytest.approx(7e6)


def held(verdict: JobVerdict, calls: list[tuple[int, str, list[int]]], called: str = "", steps: int = 1) -> str:
    """Return the verdict of a plain window if the first step of the trace has these calls: group, kind, ranks.

    `called`: how the job describes group 0.
    """
    rows = [(group, kind, rank, len(ranks)) for group, kind, ranks in calls for rank in ranks]
    groups, kinds, ranks, sizes = map(np.array, zip(*rows, strict=True))
    words, codes = np.unique(kinds, return_inverse=True)
    table = {"group_id": groups, "kind": codes, "rank": ranks, "group_size": sizes, "step": np.full(len(rows), 4)}
    table |= {"scope": np.full(len(rows), -1)}
    recording: Any = SimpleNamespace(
        calls=Table(table, {"kind": words.tolist(), "group_id": [f"{group}|[0, 1]" for group in range(2)]}),
        independent=False,
        ranks=[SimpleNamespace(descriptions={"0": called}) for _ in set(ranks.tolist())],
        steps_analysed=list(range(4, 4 + steps)),
        run_dir=None,
        world_size=2,
    )
    return _held(verdict, recording, shares_gpu=False).verdict


@pytest.mark.parametrize(("other", "verdict"), [([0, 1], "persistent"), ([0, 2], "undetermined")])
def test_without_timed_collectives_several_groups_leave_it_open(other: list[int], verdict: str) -> None:
    late = JobVerdict(verdict="persistent", window="plain", rank=0)
    assert held(late, [(0, "allreduce", [0, 1]), (1, "allreduce", other)]) == verdict


@pytest.mark.parametrize(
    ("kinds", "called", "verdict"),
    [
        (["allgather"] * 4 + ["reducescatter"] * 2, "", "undetermined"),  # FSDP
        (["alltoall"] * 4, "", "undetermined"),  # experts
        (["allreduce"] * 4, "tp", "undetermined"),
        (["send", "recv"] * 2, "", "undetermined"),  # a pipeline
        (["allreduce"] * 4, "", "none"),  # DDP
        (["allreduce", "allgather", "allgather"], "", "none"),  # DDP and a gathered object
    ],
)
def test_without_timed_collectives_nobody_knows_who_waits_within_a_pass(
    kinds: list[str], called: str, verdict: str
) -> None:
    calls = [(0, kind, [0, 1]) for kind in kinds]
    assert held(JobVerdict(verdict="none", window="plain"), calls, called) == verdict
    assert held(JobVerdict(verdict="none", window="timed"), calls, called) == "none"


def test_what_is_gathered_in_one_step_of_some_is_no_layer() -> None:
    calls = [(0, "allgather", [0, 1])] * 4
    assert held(JobVerdict(verdict="none", window="plain"), calls, steps=4) == "none"
