"""The HTML reports in a real headless browser: no script errors, no network, readable on a desk and on a phone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.analysis.commands.report_compare import report_main
from rankscope.conf.sweep_dir import PointRecord, SweepDir, SweepRecord

from .browser import OpenPage, axe_violations

RUNS = Path(__file__).parents[2] / "data" / "runs"


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


@pytest.mark.parametrize("width", [1280, 400])
def test_scaling_report(width: int, sweep: Path, open_page: OpenPage) -> None:
    page = open_page(sweep / "analysis" / "report.html", width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0 && image.alt)")
    assert page.locator("img").count() >= 1 and page.locator("table").count() >= 2
    assert "out of memory" in page.locator("tr.failed").inner_text()
    assert axe_violations(page) == []


def test_drawing_leaves_the_users_matplotlib_backend_as_it_is() -> None:
    code = (
        "import matplotlib; matplotlib.use('svg')\n"
        "import rankscope.analysis.sweep.figures, rankscope.analysis.show.timeline.figure\n"
        "print(matplotlib.get_backend())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "svg"
