"""Sizes of collectives of traces from before torch wrote metadata: from the shapes of the record around the launch."""

from pathlib import Path

import pytest

from rankscope.analysis import load
from rankscope.analysis.options import Options
from rankscope.analysis.read.kineto.columns import HAS_SHAPES
from rankscope.analysis.read.kineto.reader import read

from ..made_traces import MadeTrace


@pytest.mark.parametrize(
    ("record", "category"), [("nccl:all_reduce", "user_annotation"), ("record_param_comms", "cpu_op")]
)
def test_shapes_give_sizes(record: str, category: str, fast: bool, tmp_path: Path) -> None:
    trace = MadeTrace()
    for number in (4, 5):
        trace.step(number, number * 1000, 1000)
        shapes = {"Input Dims": [[1000, 25]], "Input type": ["c10::Half"]}
        trace.add(category, record, number * 1000 + 300, 50, **shapes)
        trace.kernel(number * 1000 + 10, 300)
        trace.kernel(number * 1000 + 340, 100, "ncclKernel_AllReduce_RING_LL_Sum_half", launched=number * 1000 + 310)
    analysis = load(trace.write(tmp_path / "rank0.json"), options=Options(fast=fast))
    assert analysis.calls["bytes"].tolist() == [50_000, 50_000]


@pytest.mark.parametrize("dims", [[[1000, 25]], [], "", "[[2]]", None, 3])
def test_shapes_of_any_type_are_noticed(dims: object, fast: bool, tmp_path: Path) -> None:
    """Then the file is read again for them, if sizes are needed."""
    trace = MadeTrace()
    trace.step(4, 0, 1000)
    without = read(trace.write(tmp_path / "without.json"), fast=fast)
    trace.add("cpu_op", "aten::mm", 300, 50, **{"Input Dims": dims})
    assert (without.extra[HAS_SHAPES], read(trace.write(tmp_path / "rank0.json"), fast=fast).extra[HAS_SHAPES]) == (
        False,
        True,
    )


def test_gloo_beside_a_device_is_said(tmp_path: Path) -> None:
    trace = MadeTrace()
    trace.step(4, 0, 1000)
    trace.kernel(10, 300)
    trace.add("cpu_op", "gloo:all_reduce", 400, 250)
    (notice,) = [
        item
        for item in load(trace.write(tmp_path / "rank0.json")).notices
        if item.kind == "cpu_collectives_beside_device"
    ]
    assert notice.details == {"count": 1, "ms": 0.25}
