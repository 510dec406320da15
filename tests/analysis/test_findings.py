"""The rules about bottlenecks: their borders on hand-made tables, and their answers on recordings with known faults."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

import rankscope.conf
from rankscope.analysis import findings, load, summarise
from rankscope.analysis.activity import ACTIVITY, is_matmul, uses_tensor_cores
from rankscope.analysis.advice import ADVICE
from rankscope.analysis.ceilings import Ceilings
from rankscope.analysis.facts import Facts, Finding
from rankscope.analysis.limits import Limits, parse
from rankscope.analysis.loader import on_cpu
from rankscope.analysis.main import main
from rankscope.analysis.plain import PassSteps, confirm
from rankscope.analysis.room import Room
from rankscope.analysis.stragglers import CAUSES, StepVerdict, Verdict
from rankscope.analysis.table import Table
from rankscope.conf import RunConfig, parse_config

TRACES = Path(__file__).parents[1] / "data" / "traces"
MS = 1_000_000
STEP = 100 * MS
LIMITS = Limits()
PARTS = ("compute", "exposed_transfer", "exposed_wait", "copy", "data_stall", "host_gap")


def steps(**parts: list[int]) -> Table:
    """Two steps of two ranks, 100 ms each; parts in ms by rank, compute takes the rest."""
    columns: dict[str, Any] = {"step": np.array([4, 4, 5, 5]), "rank": np.array([0, 1, 0, 1])}
    for name in PARTS:
        columns[f"{name}_ns"] = np.array(parts.get(name, [0, 0]) * 2) * MS
    columns["compute_ns"] = STEP - sum(columns[f"{name}_ns"] for name in PARTS[1:])
    columns["step_ns"] = np.full(4, STEP)
    columns["comm_ns"] = np.array(parts.get("comm", [10, 10]) * 2) * MS
    columns["exposed_comm_ns"] = columns["exposed_transfer_ns"] + columns["exposed_wait_ns"]
    columns |= {"host_start_ns": np.zeros(4, int), "host_end_ns": np.full(4, STEP), "data_wait_ns": np.zeros(4, int)}
    columns["launches"] = np.array(parts.get("launches", [100, 100]) * 2)
    return Table(columns)


def activity(**columns: list[int]) -> Table:
    """Rows as those of `steps`; values by rank."""
    table = {name: np.array(columns.get(name, [0, 0]) * 2, np.int64) for name in ACTIVITY if name != "step"}
    return Table({"step": np.array([4, 4, 5, 5]), **table})


def syncs(idle_ms: float) -> Table:
    words = {"call": ["cudaStreamSynchronize"], "operator": ["aten::item"], "range": ["forward"], "function": ["f"]}
    codes = {name: np.zeros(1, np.int32) for name in words}
    return Table(
        {"step": np.array([4]), **codes, "count": np.array([2]), "idle_ns": np.array([int(idle_ms * MS)])}, words
    )


def all_reduces(sizes: list[int], exposed_ms: float = 0.0, dtype: str = "Float", took_ms: float = 0.3) -> Table:
    """The all-reduces of both steps on both ranks, in order."""
    count = len(sizes)
    call = np.repeat(np.arange(2 * count), 2)
    return Table(
        {
            "kind": np.zeros(4 * count, np.int32),
            "dtype": np.zeros(4 * count, np.int32),
            "call": call,
            "step": 4 + call // count,
            "rank": np.tile([0, 1], 2 * count),
            "bytes": np.array(sizes)[call % count],
            "group_size": np.full(4 * count, 2),
            "start_ns": call * MS,
            "transfer_clockfree_ns": np.full(4 * count, int(took_ms * MS)),
            "exposed_ns": np.full(4 * count, int(exposed_ms * MS)),
        },
        {"kind": ["allreduce"], "dtype": [dtype]},
    )


def facts(table: Table | None = None, **more: Any) -> Facts:
    return Facts(steps=steps() if table is None else table, **{"verdict": Verdict(verdict="none")} | more)


def config(**keys: Any) -> RunConfig:
    return parse_config({"world_size": 2} | keys)


def late(recoverable_ms: float, cause: str = "compute") -> Verdict:
    excess = dict.fromkeys(("compute", "data", "host", "copy", "earlier_comm"), 0) | {cause: int(recoverable_ms * MS)}
    one = [StepVerdict(step=step, rank=1, lateness_ns=MS, excess_ns=excess) for step in (4, 5)]
    return Verdict(verdict="persistent", rank=1, cause=cause, lateness_ns=MS, steps_judged=2, per_step=one)


def busy(name: str, value: int, **more: int) -> Facts:
    return facts(activity=activity(**{name: [value, value]}, **{key: [item, item] for key, item in more.items()}))


# finding; facts just inside its border; facts just outside
BORDERS: list[tuple[str, Facts, Facts]] = [
    ("data_stall", facts(steps(data_stall=[3, 3])), facts(steps(data_stall=[2, 2]))),
    ("copy_bound", facts(steps(copy=[3, 3])), facts(steps(copy=[2, 2]))),
    ("host_gap", facts(steps(host_gap=[3, 3]), gpu=False), facts(steps(host_gap=[2, 2]), gpu=False)),
    ("exposed_comm", facts(steps(exposed_transfer=[3, 3])), facts(steps(exposed_transfer=[2, 2]))),
    (
        "host_bound_launch",  # a launch each millisecond
        facts(
            steps(host_gap=[9, 9]),
            activity=activity(kernels=[10, 10], kernel_ns=[9_999_999, 9_999_999], launch_p50_ns=[MS, MS]),
        ),
        facts(
            steps(host_gap=[9, 9]),
            activity=activity(kernels=[10, 10], kernel_ns=[10 * MS, 10 * MS], launch_p50_ns=[MS, MS]),
        ),
    ),
    (
        "host_gap",  # kernels as long as their launch: another reason
        facts(
            steps(host_gap=[9, 9]),
            activity=activity(kernels=[10, 10], kernel_ns=[10 * MS, 10 * MS], launch_p50_ns=[MS, MS]),
        ),
        facts(
            steps(host_gap=[9, 9]),
            activity=activity(kernels=[10, 10], kernel_ns=[9_999_999, 9_999_999], launch_p50_ns=[MS, MS]),
        ),
    ),
    (
        "sync_in_loop",
        facts(activity=activity(syncs=[1, 1], sync_idle_ns=[MS, MS]), syncs=syncs(1)),
        facts(activity=activity(syncs=[1, 1], sync_idle_ns=[MS - 1, MS - 1]), syncs=syncs(1)),
    ),
    ("small_kernels", busy("kernel_p50_ns", 9_999, kernels=100), busy("kernel_p50_ns", 10_000, kernels=100)),
    ("small_kernels", busy("kernel_p50_ns", 9_999, kernels=100), busy("kernel_p50_ns", 9_999, kernels=99)),
    ("memory_pressure", busy("mallocs", 1), busy("mallocs", 0)),
    (
        "low_tensor_core_use",
        busy("kernel_ns", 100, matmul_ns=30, tensor_ns=14),
        busy("kernel_ns", 100, matmul_ns=30, tensor_ns=15),
    ),
    (
        "low_tensor_core_use",
        busy("kernel_ns", 100, matmul_ns=30, tensor_ns=14),
        busy("kernel_ns", 100, matmul_ns=29, tensor_ns=14),
    ),
    ("memory_bound", busy("kernel_ns", 100, matmul_ns=40), busy("kernel_ns", 100, matmul_ns=41)),
    ("compute_bound", busy("kernel_ns", 100, matmul_ns=60), busy("kernel_ns", 100, matmul_ns=59)),
    (
        "compute_bound",
        facts(steps(host_gap=[30, 30]), activity=activity(kernel_ns=[100, 100], matmul_ns=[60, 60])),
        facts(steps(host_gap=[31, 31]), activity=activity(kernel_ns=[100, 100], matmul_ns=[60, 60])),
    ),
    (
        "no_overlap",
        facts(steps(exposed_transfer=[10, 10], comm=[11, 11]), calls=all_reduces([10**8])),
        facts(steps(exposed_transfer=[9, 9], comm=[10, 10]), calls=all_reduces([10**8])),
    ),
    (
        "no_overlap",
        facts(steps(exposed_transfer=[10, 10]), calls=all_reduces([10**8] * 2)),
        facts(steps(exposed_transfer=[10, 10]), calls=all_reduces([10**8] * 3)),
    ),
    (
        "large_last_bucket",
        facts(calls=all_reduces([10, 10, 20], exposed_ms=1, took_ms=1)),
        facts(calls=all_reduces([10, 11, 20], exposed_ms=1, took_ms=1)),
    ),
    ("small_buckets", facts(calls=all_reduces([15_999_999] * 16)), facts(calls=all_reduces([16_000_000] * 16))),
    ("small_buckets", facts(calls=all_reduces([1000] * 16)), facts(calls=all_reduces([1000] * 15))),
    (
        "sync_every_micro_step",
        facts(calls=all_reduces([10]), config=config(gradient_accumulation=2, ddp={"no_sync": False})),
        facts(calls=all_reduces([10]), config=config(gradient_accumulation=2)),
    ),
    (
        "unused_parameters_scan",
        facts(calls=all_reduces([64], dtype="Int")),
        facts(calls=all_reduces([64], dtype="Float")),
    ),
    (
        "unused_parameters_scan",
        facts(config=config(ddp={"find_unused_parameters": True})),
        facts(config=config()),
    ),
    (
        "first_batch",  # 6 ms in two steps
        facts(loader=[{"rank": 0, "epoch_restart_ms": 6.0}]),
        facts(loader=[{"rank": 0, "epoch_restart_ms": 5.9}]),
    ),
    ("straggler_compute", facts(verdict=late(3)), facts()),
    (
        "throttled",
        facts(verdict=late(3), clocks={0: {"clock_mhz": 1980.0, "reasons": 1}, 1: {"clock_mhz": 1881.0, "reasons": 5}}),
        facts(verdict=late(3), clocks={0: {"clock_mhz": 1980.0, "reasons": 1}, 1: {"clock_mhz": 1882.0, "reasons": 5}}),
    ),
]


def found(case: Facts, limits: Limits = LIMITS) -> dict[str, Finding]:
    return {item.id: item for item in findings.find(case, limits)}


@pytest.mark.parametrize(("name", "inside", "outside"), BORDERS, ids=[f"{n}-{k[0]}" for n, k in enumerate(BORDERS)])
def test_border(name: str, inside: Facts, outside: Facts) -> None:
    assert name in found(inside)
    assert name not in found(outside)


@pytest.mark.parametrize(("stall", "severity"), [(4, "low"), (5, "medium"), (9, "medium"), (10, "high")])
def test_severity_is_by_the_share_of_the_step_that_a_fix_would_bring(stall: int, severity: str) -> None:
    one = found(facts(steps(data_stall=[stall, stall])))["data_stall"]
    assert (one.severity, one.recoverable_ms, one.ranks) == (severity, stall, [0, 1])


def test_a_fix_on_one_rank_brings_no_more_than_the_next_slowest_rank_allows() -> None:
    """Rank 0 computes 80 ms and waits 20 for the loader; rank 1 computes 90 and waits for rank 0: 10 ms to gain."""
    one = found(facts(steps(data_stall=[20, 0], exposed_wait=[0, 10])))["data_stall"]
    assert (one.recoverable_ms, one.ranks) == (10.0, [0])


def test_waits_for_the_device_are_not_counted_as_slow_launches_too() -> None:
    idle = activity(sync_idle_ns=[8 * MS, 8 * MS], syncs=[1, 1])
    one = found(facts(steps(host_gap=[9, 9]), activity=idle, syncs=syncs(8)))
    assert set(one) == {"sync_in_loop"} and one["sync_in_loop"].recoverable_ms == 8
    (place,) = one["sync_in_loop"].evidence["places"]
    assert (place["call"], place["operator"], place["range"]) == ("cudaStreamSynchronize", "aten::item", "forward")


@pytest.mark.parametrize(
    ("size", "took_us", "share", "bound"), [(67108864, 400.0, 0.8155, "bandwidth"), (4096, 80, 0.7588, "latency")]
)
def test_an_all_reduce_is_compared_with_the_node(size: int, took_us: float, share: float, bound: str) -> None:
    """The measured all-reduces of 4 H100s: 67 MB in 326.208 us, 4 kB in 60.7024 us."""
    points = [(1024, 53.1216, 0.0289), (4096, 60.7024, 0.1012), (67108864, 326.208, 308.586)]
    node = Ceilings(world_size=4, collectives={"allreduce": points})
    calls = all_reduces([size], took_ms=took_us / 1000)
    evidence = found(facts(steps(exposed_transfer=[9, 9]), calls=calls, ceilings=node))["exposed_comm"].evidence
    assert evidence["of_ceiling"] == pytest.approx(share, abs=1e-4) and evidence["bound_by"] == bound


def test_reasons_to_throttle_are_named() -> None:
    clocks = {0: {"clock_mhz": 1980.0, "reasons": 1}, 1: {"clock_mhz": 1500.0, "reasons": 0x4 | 0x40 | 0x1}}
    one = found(facts(verdict=late(3), clocks=clocks))["throttled"]
    assert one.evidence["reasons"] == ["software power cap", "hardware thermal slowdown"] and one.ranks == [1]


def test_what_profiling_added_is_not_promised() -> None:
    case = found(
        facts(steps(host_gap=[20, 20]), activity=activity(kernels=[1, 1], kernel_ns=[1, 1], launch_p50_ns=[2, 2]))
    )
    before = [case["host_bound_launch"]]
    (after,) = findings.without_profiler(before, 88.0, 12.0, None, LIMITS)
    assert (after.recoverable_ms, after.severity) == (8.0, "medium")
    assert findings.without_profiler(before, 82.0, 18.0, None, LIMITS) == []
    (unknown,) = findings.without_profiler(before, None, None, None, LIMITS)
    assert unknown.severity == "medium" and unknown.evidence["under_the_profiler_only"]
    (distorted,) = [findings.distorts(1.151, "torch", [0], LIMITS)]
    assert distorted is not None and distorted.severity == "low"
    assert (
        findings.distorts(1.15, "torch", [0], LIMITS) is None and findings.distorts(None, "torch", [0], LIMITS) is None
    )


def test_no_fix_brings_more_than_the_plain_step_has_beside_computing_and_transfers() -> None:
    """Traced, a step of 100 ms has 50 of stall. The plain step is 60: with 40 and 45 computed and 5 transferred, 10."""
    table = steps(data_stall=[50, 50], exposed_transfer=[5, 5], exposed_wait=[5, 0])
    before = [found(facts(table))["data_stall"]]
    (after,) = findings.without_profiler(before, 60.0, 40.0, None, LIMITS, Room(step_ms=60.0, steps=table))
    assert (after.recoverable_ms, after.severity, after.evidence["traced_ms"]) == (10.0, "high", 50.0)
    room = Room(step_ms=60.0, steps=table)
    assert room.for_finding("straggler_data", [1]) == 15.0, "the late rank mended, the others' 40 + 5 are left"
    assert room.for_finding("exposed_comm", [0, 1]) == 15.0, "a transfer that is hidden leaves the computing"
    assert room.for_finding("low_tensor_core_use", [0, 1]) is None


def test_on_a_cpu_a_late_rank_that_the_plain_pass_does_not_show_is_not_called_high() -> None:
    late_rank = found(facts(verdict=late(30)))["straggler_compute"]
    stall = found(facts(steps(data_stall=[30, 30])))["data_stall"]
    assert [item.severity for item in findings.unsure([late_rank, stall])] == ["medium", "high"]


def test_what_profiling_added_is_taken_off_once() -> None:
    """Traced gaps of 12 ms and 4 behind waits, 8 added by the profiler: half of each is left."""
    waits = {"activity": activity(syncs=[1, 1], sync_idle_ns=[4 * MS, 4 * MS], kernel_ns=[9, 9]), "syncs": syncs(4)}
    before = findings.find(facts(steps(host_gap=[16, 16]), **waits), LIMITS)
    after = {item.id: item.recoverable_ms for item in findings.without_profiler(before, 92.0, 8.0, None, LIMITS)}
    assert (after["host_gap"], after["sync_in_loop"]) == (6.0, 2.0)


def test_ranks_whose_lateness_costs_next_to_nothing_are_not_named() -> None:
    def rotating(small_ms: float) -> list[int]:
        costs = {0: small_ms, 1: 40.0}
        one = [
            StepVerdict(step=4 + rank, rank=rank, lateness_ns=MS, excess_ns={"compute": int(cost * MS)})
            for rank, cost in costs.items()
        ]
        verdict = Verdict(verdict="rotating", cause="compute", lateness_ns=MS, steps_judged=2, per_step=one)
        return found(facts(verdict=verdict))["straggler_compute"].ranks

    assert rotating(10.0) == [0, 1] and rotating(9.9) == [1]


def test_a_rank_that_is_late_often_by_little_does_not_hide_one_that_is_late_once_by_much() -> None:
    """As recorded on two cores: rank 0 late by 3 and 4 ms, rank 1 by 32 ms in the step between."""
    per_step = [
        StepVerdict(step=step, rank=rank, lateness_ns=MS, excess_ns=dict.fromkeys(CAUSES, 0) | {cause: cost * MS})
        for step, rank, cause, cost in ((12, 0, "host", 3), (13, 1, "compute", 32), (14, 0, "host", 4))
    ]
    often = Verdict(verdict="persistent", rank=0, cause="host", lateness_ns=MS, steps_judged=3, per_step=per_step)
    one = found(facts(verdict=often))["straggler_compute"]
    assert (one.ranks, one.recoverable_ms) == ([1], round(32 / 3, 4))


@pytest.mark.parametrize(("share", "spare", "overrides"), [
    (0.49, 0, ["num_workers=4"]),  # it waits for its storage: workers wait beside each other
    (0.5, 0, []),
    (0.5, 1, ["num_workers=1"]),
    (1.0, 9, ["num_workers=4"]),
])  # fmt: skip
def test_workers_are_advised_where_the_loader_waits_or_cores_are_left(
    share: float, spare: int, overrides: list[str]
) -> None:
    stall = [found(facts(steps(data_stall=[30, 30])))["data_stall"]]
    (said,) = findings.with_loader_on_cpu(stall, share, spare, LIMITS)
    assert (said.overrides, said.recoverable_ms) == (overrides, 30.0)


def test_who_has_the_workers_that_are_advised_is_advised_more() -> None:
    stalled = {key: facts(steps(data_stall=[30, 30]), config=config(num_workers=key)) for key in (3, 4, 8)}
    advised = {key: found(case)["data_stall"].overrides for key, case in stalled.items()}
    assert advised == {3: ["num_workers=4"], 4: ["num_workers=8"], 8: ["num_workers=16"]}


def test_the_loader_s_cpu_time_and_a_host_s_spare_cores() -> None:
    """Two hosts of three cores: one with one rank on a GPU, one with two that compute on two threads each."""
    times = {"data_cpu_ns": np.array([6.0, 8.0]), "data_wait_ns": np.array([10.0, 10.0])}
    gpu = {"host": "a", "affinity": [0, 1, 2], "device": "cuda:0", "threads": 3}
    cpu = {"host": "b", "affinity": [0, 1, 2], "device": "cpu", "threads": 1}
    ranks = {0: times, 1: times | {"data_cpu_ns": np.array([1.0, 1.0])}}
    assert on_cpu(PassSteps(ranks=ranks, info={0: gpu, 1: gpu | {"host": "c"}})) == (0.7, 2)
    assert on_cpu(PassSteps(ranks=ranks, info={0: cpu, 1: cpu})) == (0.7, 0)
    older = {"data_wait_ns": np.array([10.0])}
    assert on_cpu(PassSteps(ranks={0: older}, info={0: gpu})) is None, "recorded before CPU times were"
    for damaged in ({"affinity": [[0]]}, {"affinity": None}, {"threads": "x"}):
        assert on_cpu(PassSteps(ranks=ranks, info={0: gpu, 1: gpu | damaged})) is None


def test_one_time_is_not_promised_twice_without_saying_so() -> None:
    case = findings.find(facts(steps(exposed_transfer=[10, 10], comm=[11, 11]), calls=all_reduces([10**8])), LIMITS)
    shared = {item.id: item.evidence.get("same_time_as") for item in findings.with_shared_time(case)}
    assert shared == {"exposed_comm": None, "no_overlap": "exposed_comm"}


def test_one_bucket_made_smaller_leaves_the_last_one_exposed() -> None:
    one = found(facts(steps(exposed_transfer=[10, 10], comm=[11, 11]), calls=all_reduces([100 * 2**20])))["no_overlap"]
    assert (one.overrides, one.recoverable_ms) == (["ddp.bucket_cap_mb=25"], 7.5)


def test_copies_to_the_host_and_ddp_s_own_waits_get_their_own_advice() -> None:
    down = activity(d2h_ns=[6, 6], h2d_ns=[4, 4], pageable_ns=[6, 6])
    one = found(facts(steps(copy=[3, 3]), activity=down))["copy_bound"]
    assert (one.advice, one.evidence["pageable_share"]) == (ADVICE["copy_bound_to_host"][0], 0.6)
    own = syncs(8)
    own.words.update({"call": ["cudaEventSynchronize"], "range": ["DistributedDataParallel.forward"]})
    one = found(facts(activity=activity(syncs=[1, 1], sync_idle_ns=[8 * MS, 8 * MS]), syncs=own))["sync_in_loop"]
    assert one.advice == ADVICE["sync_of_ddp"][0]
    usual = found(facts(activity=activity(syncs=[1, 1], sync_idle_ns=[8 * MS, 8 * MS]), syncs=syncs(8)))["sync_in_loop"]
    assert usual.advice.endswith("loop: 0.5 a step, cudaStreamSynchronize in aten::item, forward, f")


@pytest.mark.parametrize(("cause", "own_ms", "backward_ms", "expected"), [
    ("host", 50.0, (43.0, 21.0), True),  # the other rank's backward pass lasts until the late one's gradients come
    ("host", 50.0, (21.0, 21.0), False),
    ("data", 80.0, (21.0, 21.0), True),  # its own wait for batches is longer
    ("compute", 50.0, (21.0, 21.0), None),  # a slow backward pass does not show
])  # fmt: skip
def test_the_plain_pass_shows_a_late_rank_by_what_the_others_wait(
    cause: str, own_ms: float, backward_ms: tuple[float, float], expected: bool | None
) -> None:
    names = ("forward_ns", "data_wait_ns", "launch_ns", "h2d_ns")
    ranks = {
        rank: {name: np.array([own * MS]) for name in names} | {"backward_ns": np.array([backward_ms[rank] * MS])}
        for rank, own in enumerate((50.0, own_ms))
    }
    late_rank = Verdict(verdict="persistent", rank=1, cause=cause, lateness_ns=24 * MS)
    assert confirm(late_rank, PassSteps(ranks=ranks, info={})) is expected


def test_every_limit_can_be_set_and_moves_its_border() -> None:
    stall = facts(steps(data_stall=[4, 4]))
    assert found(stall, parse(["high=0.04"]))["data_stall"].severity == "high"
    assert found(stall, parse(["reported=0.041"])) == {}
    for key in Limits.__struct_fields__:
        assert getattr(parse([f"{key}=0.5"]), key) == 0.5


@pytest.mark.parametrize(
    ("item", "said"), [("hihg=1", "did you mean high"), ("high=much", "KEY=NUMBER"), ("high=-1", "at least 0")]
)
def test_a_limit_that_cannot_be_is_refused_in_one_line(
    item: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(TRACES / "comm_bound_w4"), "--limits", item]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def test_ceilings_that_cannot_be_read_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text('{"launch_us": "fast"}')
    assert main([str(TRACES / "comm_bound_w4"), "--ceilings", str(tmp_path / "x.json")]) == 2
    error = capsys.readouterr().err
    assert "launch_us" in error and "rankscope ceilings" in error and len(error.splitlines()) == 1


def test_every_finding_has_advice_and_every_override_is_one() -> None:
    from rankscope.launch.compose import compose

    for name, (text, overrides) in ADVICE.items():
        assert text, name
        compose(list(overrides))


def test_scenarios_expect_findings_that_exist() -> None:
    folder = Path(rankscope.conf.__file__).parent / "scenario"
    for path in folder.glob("*.yaml"):
        data = yaml.safe_load(path.read_text())
        expected = data.get("scenario", data).get("finds", [])
        assert expected or path.stem == "none"
        assert set(expected) <= set(ADVICE), path


@pytest.mark.parametrize(
    ("kernel", "matmul", "tensor"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN", True, True),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", True, True),
        ("ampere_sgemm_128x64_tn", True, False),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(cutlass_80::Params)", True, False),
        (
            "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel",
            True,
            True,
        ),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>", True, True),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>", True, False),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>", False, False),
    ],
)
def test_kernels_by_name(kernel: str, matmul: bool, tensor: bool) -> None:
    assert (is_matmul(kernel), uses_tensor_cores(kernel)) == (matmul, tensor)


# --- recordings with known faults ----------------------------------------------------------------------------


@cache
def of_trace(name: str) -> list[dict[str, Any]]:
    return [msgspec.convert(item, dict[str, Any]) for item in summarise(load(TRACES / name))["findings"]]


@pytest.mark.parametrize(
    ("name", "top", "rank", "low", "high"),
    [
        ("big_straggler_gpu_w4", "straggler_compute", [3], 5.66 * 0.8, 7.7),  # the plain step grew by 5.66 ms
        ("big_data_stall_rank0_w4", "straggler_data", [0], 139, 150),
        ("comm_bound_w4", "exposed_comm", [0, 1, 2, 3], 5.0, 6.6),
    ],
)
def test_the_planted_fault_comes_first(name: str, top: str, rank: list[int], low: float, high: float) -> None:
    first = of_trace(name)[0]
    assert (first["id"], first["severity"], first["ranks"]) == (top, "high", rank)
    assert low <= first["recoverable_ms"] <= high


def test_nothing_is_found_where_nothing_was_planted() -> None:
    assert of_trace("big_baseline_w4") == []
