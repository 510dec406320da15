"""What a node can do, as a file of `rankscope ceilings` says: looked up between sizes, and beside what was measured."""

from pathlib import Path

import pytest

from rankscope.analysis import load, summarise
from rankscope.analysis.measure.ceilings import load as load_ceilings
from rankscope.analysis.options import Options

DATA = Path(__file__).parents[2] / "data"
H100 = DATA / "ceilings" / "h100_w4.json"  # measured on the node of tests/data/traces


def test_times_between_measured_sizes() -> None:
    node = load_ceilings(H100)
    assert node.time_us("allreduce", 67108864, 4) == pytest.approx(326.208, rel=1e-5)
    middle = node.time_us("allreduce", 2**25, 4)  # half way between 2**24 and 2**26 in logs: the geometric mean
    assert middle == pytest.approx((99.8304 * 326.208) ** 0.5, rel=1e-5)
    assert node.time_us("allreduce", 512, 4) is None and node.time_us("allreduce", 2**31, 4) is None
    assert node.time_us("broadcast", 1024, 4) is None and node.latency_us("broadcast", 4) is None
    assert node.time_us("allreduce", 2**25, 2) is None and node.latency_us("allreduce", 2) is None  # other links


def test_all_reduces_of_a_job_against_its_node() -> None:
    summary = summarise(load(DATA / "traces" / "comm_bound_w4", options=Options(ceilings=H100)))
    rows = [row for row in summary["collectives"] if row["kind"] == "allreduce" and (row["bytes"] or 0) > 1 << 26]
    assert len(rows) >= 6 and all(0.7 < row["of_ceiling"] < 1.1 for row in rows)  # 67 to 268 MB, alone on the links
    evidence = summary["findings"][0]["evidence"]
    assert evidence["bound_by"] == "bandwidth"
    assert evidence["of_ceiling"] == pytest.approx(evidence["busbw_GBs"] / evidence["ceiling_busbw_GBs"], rel=1e-3)


def test_without_a_measurement_nothing_is_compared() -> None:
    summary = summarise(load(DATA / "traces" / "comm_bound_w4"))
    assert all(row["of_ceiling"] is None for row in summary["collectives"])
    assert "of_ceiling" not in summary["findings"][0]["evidence"]
