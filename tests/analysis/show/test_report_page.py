"""`report.html` of a point in a real browser: complete, offline, accessible; its numbers are those of summary.json."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from rankscope.analysis import load, summarise
from rankscope.analysis.commands.analyze import main
from rankscope.analysis.measure.ceilings import Ceilings
from rankscope.analysis.show.report.lists import longest
from rankscope.analysis.show.report.page import report_html
from rankscope.analysis.tables.operators import kernels_by_name

from .browser import OpenPage, axe_violations

DATA = Path(__file__).parents[2] / "data"
LIMIT = 3_000_000  # bytes, for eight ranks; these have two and four


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "<b>resnet"
    shutil.copytree(DATA / "runs" / "resnet_w2", folder)
    assert main([str(folder), "--quiet"]) == 0
    return folder / "analysis"


@pytest.mark.parametrize("width", [1280, 400])
def test_report_of_a_run(width: int, run: Path, open_page: OpenPage) -> None:
    page = open_page(run / "report.html", width)
    page.wait_for_selector("#timeline[data-ready=yes]")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    summary = json.loads((run / "summary.json").read_text())
    text = page.inner_text("main")
    assert page.inner_text("h1") == "<b>resnet"
    assert f"{summary['throughput']['samples_per_s']:.1f} samples/s" in text and "MFU" in text
    assert "without a profiler" in text and "aten::" in text
    assert "train resnet" in text and "2 ranks on NVIDIA H100 80GB HBM3" in text and "torch 2.11.0+cu130" in text
    assert "rankscope run name=resnet2 model=resnet" in text and "NCCL: 2.28.9" in text and "model:" in page.content()
    assert page.get_by_role("img").count() == 2  # a stacked bar a rank, with its numbers as its name
    assert "compute 0.3" in (page.get_by_role("img").first.get_attribute("aria-label") or "")
    for finding in summary["findings"]:
        assert finding["recoverable_ms"] is None or f"{finding['recoverable_ms']:.2f}" in text
    assert axe_violations(page) == []
    assert (run / "report.html").stat().st_size < LIMIT / 4


def test_report_of_traces(tmp_path: Path, open_page: OpenPage) -> None:
    assert main([str(DATA / "traces" / "big_straggler_gpu_w4"), "--out", str(tmp_path), "--quiet"]) == 0
    page = open_page(tmp_path / "report.html")
    page.wait_for_selector("#timeline[data-ready=yes]")
    text = page.inner_text("main")
    assert "Rank 3 is late in 3 of 3 steps" in text and "no plain pass" in text
    heat = page.locator("table.heat tbody tr").nth(3).locator("td").all_text_contents()
    assert [float(value) > 6 for value in heat] == [True] * 4  # planted in every step
    assert axe_violations(page) == []


def test_longest_kernels_are_sums_of_the_records() -> None:
    analysis = load(DATA / "traces" / "big_straggler_gpu_w4")
    frame = analysis.kernels().query("role == 'compute' and step in @analysis.steps_analysed")
    sums = ((frame["end_ns"] - frame["start_ns"]).groupby(frame["name"], observed=True).sum() / 1e6).nlargest(20)
    kernels = kernels_by_name(analysis)
    compute = kernels.take(~np.isin(np.array(kernels.texts("class"), str), ["communication", "copy"]))
    found = longest(compute, "total_ns", steps=4)
    assert [row["name"] for row in found] == sums.index.tolist()
    assert [row["ms"] * 16 for row in found] == pytest.approx(sums.tolist())


def test_report_without_steps(tmp_path: Path, open_page: OpenPage) -> None:
    source = sorted((DATA / "traces" / "comm_bound_w4").glob("rank*.json.gz"))
    for path in source:
        trace = json.loads(gzip.decompress(path.read_bytes()))
        marks = ("user_annotation", "gpu_user_annotation")
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") not in marks]
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(trace))
    out = tmp_path / "out"
    main([str(tmp_path), "--out", str(out), "--quiet"])
    page = open_page(out / "report.html")
    page.wait_for_selector("#timeline[data-ready=yes]")
    assert "No complete step was recorded" in page.inner_text("main")
    assert "whole window" in page.inner_text("#timeline-sentence").lower()


def test_bus_bandwidth_stands_against_the_node_s_ceiling() -> None:
    """All-reduce over four ranks: bus bandwidth is 1.5 times bytes over time (nccl-tests)."""
    node = Ceilings(world_size=4, collectives={"allreduce": [(1 << 20, 20.0, 0.0), (67_108_864, 400.0, 0.0)]})
    analysis = load(DATA / "traces" / "big_straggler_gpu_w4")
    row = next(row for row in summarise(analysis)["collectives"] if row["bytes"] == 33_554_432)
    time_us = node.time_us("allreduce", 33_554_432, 4)
    assert time_us is not None
    analysis = structs.replace(analysis, ceilings=node)
    text = report_html(summarise(analysis), analysis, "job")
    assert f"<td>{33_554_432 / time_us * 1.5e-3:.0f}</td>" in text
    assert f"{row['busbw_GBs'] / (33_554_432 / time_us * 1.5e-3):.1%}" in text
    assert "The ceiling is not known" not in text


@pytest.fixture
def straggler(tmp_path: Path, open_page: OpenPage) -> Any:
    assert main([str(DATA / "traces" / "big_straggler_gpu_w4"), "--out", str(tmp_path), "--quiet"]) == 0
    page = open_page(tmp_path / "report.html")
    page.wait_for_selector("html[data-ready=yes]", state="attached")
    page.wait_for_selector("#timeline[data-ready=yes]")
    return page


def test_a_finding_leads_to_its_place(straggler: Any) -> None:
    """The late rank's finding zooms to the collective that it reaches late (6.56 ms, as the verdict says)."""
    whole = straggler.evaluate("+timeline.dataset.to - +timeline.dataset.from")
    straggler.get_by_role("button", name="Show straggler compute in the timeline").click()
    assert straggler.evaluate("document.activeElement.id") == "timeline-canvas"
    assert straggler.evaluate("+timeline.dataset.to - +timeline.dataset.from") < whole / 2
    said = straggler.inner_text("#timeline-said")
    assert said.startswith("allreduce") and "rank 3" in said and "arrived 6.56" in said
    assert "arrivals after the first: rank 3 +6." in said  # the same collective on the other ranks


def test_search_sums_and_ranks_of_the_timeline(straggler: Any) -> None:
    find = straggler.locator("#timeline-find")
    find.fill("allreduce")
    found = int(straggler.inner_text("#timeline-found").split()[0])
    find.press("Enter")
    assert straggler.inner_text("#timeline-found") == f"1 of {found}"
    find.press("Shift+Enter")
    assert straggler.inner_text("#timeline-found") == f"{found} of {found}"
    find.fill("no such kernel")
    assert straggler.inner_text("#timeline-found") == "0 found"
    straggler.get_by_role("button", name="Whole step").click()
    straggler.get_by_role("button", name="Sums of this view").click()
    row = straggler.locator("#timeline-table tbody tr").nth(3).locator("td").all_inner_texts()
    assert f"rank 3: compute {row[1]} ms" in straggler.inner_text("#timeline-sums")
    straggler.locator("#timeline-ranks").fill("1-2")
    straggler.locator("#timeline-ranks").press("Enter")
    assert straggler.locator("#timeline-table tbody th").all_inner_texts() == ["1", "2"]


def test_tables_sort_filter_and_copy(straggler: Any) -> None:
    table = straggler.get_by_role("region", name="Kernels by name", exact=True).locator("table")
    head = table.get_by_role("button", name="calls per step")
    head.click()
    calls = [float(text) for text in table.locator("tbody td:nth-child(4)").all_inner_texts()]
    assert calls == sorted(calls, reverse=True) and table.locator("th[aria-sort=descending]").count() == 1
    head.press("Enter")
    assert [float(text) for text in table.locator("tbody td:nth-child(4)").all_inner_texts()] == sorted(calls)
    straggler.get_by_label("Keep rows of Kernels by name with").fill("allreduce")
    shown = table.locator("tbody tr:visible")
    assert shown.count() == 1 and "ncclDevKernel_AllReduce" in shown.inner_text()
    text = straggler.evaluate("page.csv(document.querySelector('[aria-label=\"Kernels by name\"] table'))")
    assert text.splitlines()[0].startswith("kernel,ms per step") and len(text.splitlines()) == 2


def test_theme_and_contents(straggler: Any) -> None:
    links = straggler.locator("nav.contents a").all_inner_texts()
    assert links == straggler.locator("main h2").all_inner_texts()
    before = straggler.evaluate("getComputedStyle(document.body).backgroundColor")
    straggler.get_by_role("button", name="Dark or light").click()
    assert straggler.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert axe_violations(straggler) == []
    straggler.emulate_media(media="print")
    assert not straggler.locator("nav.contents").is_visible()


def test_curve_has_every_step_of_every_rank(run: Path, open_page: OpenPage) -> None:
    """The numbers below the curve are those of steps.parquet; the keyboard goes from step to step."""
    page = open_page(run / "report.html")
    page.wait_for_selector("#curve[data-ready=yes]")
    table = pq.read_table(run.parent / "passes" / "plain" / "ranks" / "1" / "steps.parquet").to_pandas()
    measured = table[table["phase"] == "measured"]["device_ns"] * 1e-6
    row = page.get_by_role("region", name="Steps in numbers").locator("tbody tr").nth(1).locator("td").all_inner_texts()
    expected = [measured.mean(), measured.median(), measured.quantile(0.95), measured.max()]
    assert row == [f"{value:.2f}" for value in expected]
    page.locator("#curve canvas").focus()
    page.keyboard.press("End")
    last = table.iloc[-1]
    said = page.inner_text("#curve .said")
    assert said.startswith(f"step {last['step']}") and f"rank 1: {last['device_ns'] * 1e-6:.2f}" in said


def test_a_run_without_a_trace_has_its_page(run: Path, tmp_path: Path, open_page: OpenPage) -> None:
    folder = tmp_path / "untraced"
    shutil.copytree(run.parent, folder, ignore=shutil.ignore_patterns("torch", "analysis"))
    assert main([str(folder), "--quiet"]) == 0
    page = open_page(folder / "analysis" / "report.html")
    page.wait_for_selector("#curve[data-ready=yes]")
    assert "samples/s" in page.inner_text("main") and "has no trace" in page.inner_text("main")
    assert axe_violations(page) == []
