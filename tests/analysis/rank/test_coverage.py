"""A step counts unless kernels of it are lost: what never leaves a record, or cannot be linked, is not lost."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.analysis import Analysis, load, summarise

from ..made_traces import MadeTrace

KERNELS = 10


def steps_of(trace: MadeTrace, inside: Callable[[MadeTrace, float], None]) -> None:
    """Add three steps of 1000 us with ten kernels of 50 us each, and what `inside` adds at the step's start."""
    for number in (4, 5, 6):
        start = number * 1000.0
        trace.step(number, start, 1000)
        for index in range(KERNELS):
            trace.kernel(start + 10 + 80 * index, 50)
        inside(trace, start)


def analysed(folder: Path, inside: Callable[[MadeTrace, float], None]) -> Analysis:
    trace = MadeTrace()
    steps_of(trace, inside)
    return load(trace.write(folder / "rank0.json"))


def memsets(trace: MadeTrace, start: float) -> None:
    for index in range(5):
        trace.call("cudaMemsetAsync", start + 900 + index)


def unlinked(trace: MadeTrace, start: float) -> None:
    """As ROCm writes communication kernels: the call has a number that no kernel has."""
    for index in range(2):
        trace.call("hipLaunchKernel", start + 900 + index)
        trace.kernel(start + 910 + 20 * index, 10, "ncclDevKernel_Generic_1", call=None, stream=9)


def two_of_one_launch(trace: MadeTrace, start: float) -> None:
    trace.kernel(start + 900, 10)
    trace.kernel(start + 915, 10, call="cudaLaunchKernel", correlation=trace._correlation)


def captured(trace: MadeTrace, start: float) -> None:
    trace.call("cudaStreamBeginCapture", start + 900)
    for index in range(5):
        trace.call("cudaLaunchKernel", start + 901 + index)
    trace.call("cudaStreamEndCapture", start + 910)


def other_device(trace: MadeTrace, start: float) -> None:
    for index in range(2):
        trace.kernel(start + 900 + 10 * index, 5, device=1)


@pytest.mark.parametrize("inside", [memsets, unlinked, two_of_one_launch, captured, other_device])
def test_nothing_is_lost(inside: Callable[[MadeTrace, float], None], tmp_path: Path) -> None:
    analysis = analysed(tmp_path, inside)
    assert analysis.steps_analysed == [4, 5, 6]
    extra = 20_000 if inside is two_of_one_launch else 0
    assert set(analysis.step_table["compute_ns"].tolist()) == {KERNELS * 50_000 + extra}


def test_lost_kernels_leave_out_their_step_and_the_notice_counts_them(tmp_path: Path) -> None:
    def lost(trace: MadeTrace, start: float) -> None:
        for index in range(3 if start == 5000 else 0):
            trace.call("cudaLaunchKernel", start + 900 + index)

    analysis = analysed(tmp_path, lost)
    assert analysis.steps_analysed == [4, 6]
    (notice,) = [item for item in analysis.notices if item.kind == "partial_step"]
    assert "lost 3 of 13 kernels" in notice.message


def test_an_unlinked_kernel_is_of_the_step_that_the_device_works_on(tmp_path: Path) -> None:
    """The host is a step ahead: at 5450 us it is in step 5, while the device still works on step 4."""
    trace = MadeTrace()
    for number in (4, 5):
        trace.step(number, number * 1000, 1000)
        for index in range(4):
            trace.kernel(number * 1000 + 1000 + 100 * index, 90, launched=number * 1000 + 10 * index)
        trace.call("hipLaunchKernel", number * 1000 + 60)
        trace.kernel(number * 1000 + 1450, 100, "ncclDevKernel_Generic_1", call=None, stream=9)
    analysis = load(trace.write(tmp_path / "rank0.json"))
    assert analysis.steps_analysed == [4, 5]
    assert analysis.step_table["comm_ns"].tolist() == [100_000, 100_000]


def test_every_device_of_a_process_has_its_own_numbers(tmp_path: Path) -> None:
    summary = summarise(analysed(tmp_path, other_device))
    (row,) = summary["devices"]
    assert (row["rank"], row["device"], row["records"]) == (0, 1, 6)
    assert row["compute_ms"] == pytest.approx(6 * 0.005)
    assert row["step"]["compute_ms"] == pytest.approx(2 * 0.005)
    assert summary["totals"][0]["device"] == 0 and summary["totals"][0]["compute_us"] == 3 * KERNELS * 50
