"""The interactive timeline in a real browser: zoom, hover and choice of step by mouse and keyboard; accessibility."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from rankscope.analysis import load
from rankscope.analysis.commands.timeline import main
from rankscope.analysis.show.timeline.build import build
from rankscope.analysis.show.timeline.page import page as page_of

from .browser import OpenPage, axe_violations

TRACES = Path(__file__).parents[2] / "data" / "traces"


@pytest.fixture(scope="module")
def straggler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    assert main([str(TRACES / "big_straggler_gpu_w4"), "--out", str(folder), "--make", "page", "--quiet"]) == 0
    return folder / "timeline.html"


def ready(page: Any) -> Any:
    page.wait_for_selector("#timeline[data-ready=yes]")
    return page


def span(page: Any) -> float:
    return float(page.evaluate("+timeline.dataset.to - +timeline.dataset.from"))


def point(page: Any, row: int, lane: float, ms: float) -> tuple[float, float]:
    """Return where on the screen a time of a lane of a rank is, from the page's own view (gutter 118, 86 a rank)."""
    box = page.locator("#timeline-canvas").bounding_box()
    view = page.evaluate("[+timeline.dataset.from, +timeline.dataset.to]")
    x = 118 + (ms * 1e6 - view[0]) / (view[1] - view[0]) * (box["width"] - 126)
    return box["x"] + x, box["y"] + 20 + 86 * (row + lane)


@pytest.mark.parametrize("width", [1280, 400])
def test_opens_says_who_is_late_and_is_accessible(width: int, straggler: Path, open_page: OpenPage) -> None:
    page = ready(open_page(straggler, width))
    assert "Rank 3 is late in 3 of 3 steps" in page.inner_text("main")
    assert "rank 3 reaches a collective" in page.inner_text("#timeline-sentence")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    rows = page.locator("#timeline-table tbody tr")
    assert rows.count() == 4 and page.locator("tr.late th").inner_text() == "3"
    cells = [float(text) for text in rows.nth(3).locator("td").all_inner_texts()]
    assert sum(cells[1:-1]) == pytest.approx(cells[0], abs=0.04)
    assert axe_violations(page) == []
    drawn = page.evaluate(
        "() => { const c = document.getElementById('timeline-canvas'), d = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; const found = new Set();"
        "for (let i = 0; i < d.length; i += 4) found.add((d[i] << 16 | d[i + 1] << 8 | d[i + 2]).toString(16));"
        "return [...found]; }"
    )
    assert {"72b2", "d55e00", "b00020"} <= set(drawn)  # compute, transfer, the mark of the late rank


def test_mouse_zooms_moves_hovers_and_picks(straggler: Path, open_page: OpenPage) -> None:
    page = ready(open_page(straggler))
    whole = span(page)
    x, y = point(page, 0, 0.83, 23)  # the first all-reduce of rank 0 while it waits
    page.mouse.move(x, y)
    tip = page.locator("#timeline-tip")
    assert tip.is_visible() and "allreduce, 33.55 MB" in tip.inner_text() and "wait 6." in tip.inner_text()
    page.mouse.click(x, y)
    assert "allreduce" in page.inner_text("#timeline-said")
    page.mouse.dblclick(x, y)
    assert span(page) == pytest.approx(0.4 * whole)
    begin = page.evaluate("+timeline.dataset.from")
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 200, y, steps=4)
    page.mouse.up()
    assert page.evaluate("+timeline.dataset.from") > begin
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_function(f"+timeline.dataset.to - +timeline.dataset.from < {0.39 * whole}")
    page.get_by_role("button", name="Whole step").click()
    assert span(page) == pytest.approx(whole)
    x, y = point(page, 3, 0.5, 10)
    page.mouse.move(x, y)
    assert "rank 3, from" in tip.inner_text()  # a kernel, by its name
    page.get_by_role("combobox").select_option("5")
    assert page.inner_text("#timeline-sentence").startswith("Step 5")


def test_keyboard_alone_does_the_same(straggler: Path, open_page: OpenPage) -> None:
    page = ready(open_page(straggler))
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "timeline-canvas":
            break
    assert page.evaluate("document.activeElement.id") == "timeline-canvas"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) != "none"
    whole = span(page)
    page.keyboard.press("+")
    assert span(page) == pytest.approx(whole / 2)
    begin = page.evaluate("+timeline.dataset.from")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("+timeline.dataset.from") > begin
    page.keyboard.press("0")
    assert span(page) == pytest.approx(whole)
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert page.inner_text("#timeline-said") == "rank 0: communication"
    page.keyboard.press("n")
    first = page.inner_text("#timeline-said")
    page.keyboard.press("n")
    assert first.startswith("allreduce") and page.inner_text("#timeline-said") != first
    page.keyboard.press("p")
    assert page.inner_text("#timeline-said") == first
    page.keyboard.press("Enter")
    assert span(page) < whole / 2  # thrice the item: room on both sides
    page.keyboard.press("l")
    assert "rank 3" in page.inner_text("#timeline-said") and "after the others" in page.inner_text("#timeline-said")
    page.keyboard.press("]")
    assert page.inner_text("#timeline-sentence").startswith("Step 7")


def test_two_runs_lie_under_one_another(tmp_path: Path, open_page: OpenPage) -> None:
    paths = [str(TRACES / name) for name in ("big_baseline_w4", "big_straggler_gpu_w4")]
    assert main([*paths, "--out", str(tmp_path), "--make", "page", "--quiet"]) == 0
    page = ready(open_page(tmp_path / "timeline.html"))
    assert page.locator("#timeline-table tbody tr").count() == 8
    assert "big_baseline_w4: Step 6: no rank is late" in page.inner_text("#timeline-sentence")
    assert axe_violations(page) == []


def test_folded_ranks_are_drawn_as_their_mean(tmp_path: Path, open_page: OpenPage) -> None:
    timeline = build(load(TRACES / "big_straggler_gpu_w4"), "many", most=2)
    timeline = structs.replace(timeline, shown=[3])
    (tmp_path / "page.html").write_text(text := page_of([timeline], 6, ["Rank 3 is late."]))
    (tmp_path / "other.html").write_text(page_of([structs.replace(timeline, shown=[0, 1, 2, 3])], 6, [""]))
    assert len(text) < (tmp_path / "other.html").stat().st_size
    page = ready(open_page(tmp_path / "page.html"))
    assert page.locator("#timeline-table tbody tr").count() == 1
    colour = (
        "([x, y]) => { const c = document.getElementById('timeline-canvas'), r = c.getBoundingClientRect();"
        "return [...c.getContext('2d').getImageData(x - r.x, y - r.y, 1, 1).data.slice(0, 3)]; }"
    )
    assert page.evaluate(colour, point(page, 1, 0.5, 10)) == [0, 0x72, 0xB2]  # all three compute then
