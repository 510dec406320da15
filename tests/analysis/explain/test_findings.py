"""The rules about bottlenecks: their borders on hand-made tables, and their answers on recordings with known faults."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

import rankscope.conf
from rankscope.analysis import load, summarise
from rankscope.analysis.commands.analyze import main
from rankscope.analysis.core.kernel_families import is_matmul, uses_tensor_cores
from rankscope.analysis.core.limits import Limits, parse
from rankscope.analysis.core.table import Table
from rankscope.analysis.explain import findings
from rankscope.analysis.explain.facts import Facts
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.analysis.options import Options

from .made_facts import (
    MS,
    activity,
    all_reduces,
    busy,
    config,
    facts,
    found,
    gathers,
    late,
    restarts,
    steps,
    syncs,
)

RULE = {rule.id: rule for rule in findings.RULES}
TRACES = Path(__file__).parents[2] / "data" / "traces"


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
        "exposed_gather",
        facts(steps(exposed_transfer=[10, 10]), calls=gathers(exposed_ms=3)),
        facts(steps(exposed_transfer=[10, 10]), calls=gathers(exposed_ms=2.9)),
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
        facts(steps(data_stall=[6, 6]), loader=restarts(6.0)),
        facts(steps(data_stall=[6, 6]), loader=restarts(5.9)),
    ),
    ("straggler_compute", facts(verdict=late(3)), facts()),
    (
        "throttled",
        facts(verdict=late(3), clocks={0: {"clock_mhz": 1980.0, "reasons": 1}, 1: {"clock_mhz": 1881.0, "reasons": 5}}),
        facts(verdict=late(3), clocks={0: {"clock_mhz": 1980.0, "reasons": 1}, 1: {"clock_mhz": 1882.0, "reasons": 5}}),
    ),
]


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
    calls = all_reduces([size], took_ms=took_us / 1000)
    ranks = int(calls["group_size"].max())
    for measured in (ranks, 2 * ranks):
        node = Ceilings(world_size=measured, collectives={"allreduce": points})
        evidence = found(facts(steps(exposed_transfer=[9, 9]), calls=calls, ceilings=node))["exposed_comm"].evidence
        if measured == ranks:
            assert evidence["of_ceiling"] == pytest.approx(share, abs=1e-4) and evidence["bound_by"] == bound
        else:
            assert "of_ceiling" not in evidence  # a group of other size uses other links


@pytest.mark.parametrize(
    ("dimension", "gradients"),
    [
        ("dp", True),
        ("all ranks", True),
        ("dp_cp", True),
        ("fsdp", True),
        ("tp", False),
        ("ep", False),
        ("cp_tp", False),
    ],
)
def test_advice_about_gradients_is_for_gradients(dimension: str, gradients: bool) -> None:
    """All-reduces of tensor parallelism add up activations: buckets and compressed gradients do not change them."""
    table = steps(exposed_transfer=[10, 10], comm=[11, 11])
    claims = found(facts(table, calls=all_reduces([10**8], exposed_ms=10, took_ms=10), dimension_of={0: dimension}))
    exposed = claims["exposed_comm"]
    assert bool(exposed.overrides) == gradients and exposed.recoverable_ms == 10
    assert exposed.advice.endswith(f"allreduce of {dimension}") != gradients
    assert ("no_overlap" in claims) == gradients


def test_exposed_activations_do_not_mean_that_gradients_overlap_badly() -> None:
    """One hidden all-reduce of gradients, and ten exposed ones of tensor parallelism."""
    hidden, exposed = all_reduces([10**8], took_ms=1), all_reduces([10**6] * 10, exposed_ms=1, took_ms=1)
    exposed = exposed.with_columns(group_id=np.ones(len(exposed), np.int32), call=exposed["call"] + 1000)
    both = Table(
        {name: np.concatenate([hidden[name], exposed[name]]) for name in hidden.columns},
        {**hidden.words, "group_id": ["0|[0, 1]", "1|[0, 1]"]},
    )
    table = steps(exposed_transfer=[10, 10], comm=[11, 11])
    claims = found(facts(table, calls=both, dimension_of={0: "dp", 1: "tp"}))
    assert "no_overlap" not in claims and claims["exposed_comm"].advice.endswith("allreduce of tp")


def test_a_long_pause_is_not_one_of_launches() -> None:
    """Short kernels; the device idles for 9 ms in a step, 6 of them in one pause."""
    short = {"kernels": [10, 10], "kernel_ns": [MS, MS], "launch_p50_ns": [MS, MS]}
    claims = found(facts(steps(host_gap=[9, 9]), activity=activity(**short, long_idle_ns=[6 * MS, 6 * MS])))
    assert claims["host_bound_launch"].recoverable_ms == pytest.approx(3)
    assert claims["host_gap"].recoverable_ms == pytest.approx(6)


def test_who_has_the_workers_that_are_advised_is_advised_more() -> None:
    stalled = {key: facts(steps(data_stall=[30, 30]), config=config(num_workers=key)) for key in (3, 4, 8)}
    advised = {key: found(case)["data_stall"].overrides for key, case in stalled.items()}
    assert advised == {3: ["num_workers=4"], 4: ["num_workers=8"], 8: ["num_workers=16"]}


def test_one_bucket_made_smaller_leaves_the_last_one_exposed() -> None:
    one = found(facts(steps(exposed_transfer=[10, 10], comm=[11, 11]), calls=all_reduces([100 * 2**20])))["no_overlap"]
    assert (one.overrides, one.recoverable_ms) == (["ddp.bucket_cap_mb=25"], 7.5)


def test_copies_to_the_host_and_ddp_s_own_waits_get_their_own_advice() -> None:
    down = activity(d2h_ns=[6, 6], h2d_ns=[4, 4], pageable_ns=[6, 6])
    one = found(facts(steps(copy=[3, 3]), activity=down))["copy_bound"]
    assert (one.advice, one.evidence["pageable_share"]) == (RULE["copy_bound"].variants["to_host"].text, 0.6)
    own = syncs(8)
    own.words.update({"call": ["cudaEventSynchronize"], "range": ["DistributedDataParallel.forward"]})
    one = found(facts(activity=activity(syncs=[1, 1], sync_idle_ns=[8 * MS, 8 * MS]), syncs=own))["sync_in_loop"]
    assert one.advice == RULE["sync_in_loop"].variants["ddp"].text
    usual = found(facts(activity=activity(syncs=[1, 1], sync_idle_ns=[8 * MS, 8 * MS]), syncs=syncs(8)))["sync_in_loop"]
    assert usual.advice.endswith("loop: 0.5 per step, cudaStreamSynchronize in aten::item, forward, f")


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
    from rankscope.launch.configure.compose import compose

    for rule in findings.RULES:
        for advice in (rule.advice, *rule.variants.values()):
            assert advice.text, rule.id
            compose(list(advice.overrides))


def test_scenarios_expect_findings_that_exist() -> None:
    folder = Path(rankscope.conf.__file__).parent / "scenario"
    for path in folder.glob("*.yaml"):
        data = yaml.safe_load(path.read_text())
        expected = data.get("scenario", data).get("finds", [])
        assert expected or path.stem == "none"
        assert set(expected) <= set(RULE), path


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


def test_one_share_decides_every_cause() -> None:
    """With a share that no cause can reach, every cause is mixed: of the run, of each step, of the finding."""
    options = Options(limits=Limits(cause_share=1.01), cache=False)
    summary = summarise(load(TRACES / "big_straggler_gpu_w4", options=options))
    assert summary["stragglers"]["cause"] == "mixed"
    assert {item["cause"] for item in summary["stragglers"]["per_step"]} == {"mixed"}
    assert "straggler_mixed" in {item["id"] for item in summary["findings"]}


def test_steps_without_length_show_nothing() -> None:
    table = steps(data_stall=[3, 3], copy=[3, 3])
    assert findings.find(facts(table.with_columns(step_ns=np.zeros(4, int))), Limits()) == []
