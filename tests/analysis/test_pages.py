"""The HTML reports in a real headless browser: no script errors, no network, readable on a desk and on a phone."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.sweep_main import report_main
from rankscope.conf.sweep_dir import PointRecord, SweepDir, SweepRecord

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

RUNS = Path(__file__).parents[1] / "data" / "runs"
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two recorded points and one that failed with markup in its message."""
    folder = tmp_path_factory.mktemp("sweep")
    points = []
    for number, name in enumerate(("resnet_w2", "images_w2")):
        shutil.copytree(RUNS / name, folder / "points" / f"00{number}")
        points.append(
            PointRecord(id=f"00{number}", overrides=[f"name={name}"], status="completed", folder=f"00{number}")
        )
    failure = {"kind": "oom", "message": "<script>alert(1)</script> & out of memory"}
    points.append(PointRecord(id="002", overrides=["batch_size=4096"], status="failed", failure=failure))
    SweepDir(folder).write(SweepRecord(overrides=[], status="failed", points=points))
    assert report_main([str(folder)]) == 3
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("width", [1280, 400])
def test_scaling_report(width: int, sweep: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append("a name from a file was run as a script"))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((sweep / "analysis" / "report.html").as_uri())
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0 && image.alt)")
    assert page.locator("img").count() >= 1 and page.locator("table").count() >= 2
    assert "out of memory" in page.locator("tr.failed").inner_text()
    page.close()
