"""The HTML reports in a real headless browser: no script errors, no network, readable on a desk and on a phone."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.analysis.commands.report_compare import compare_main, report_main
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


def test_compared_runs_have_both_curves_and_what_changed(tmp_path: Path, open_page: OpenPage) -> None:
    for name in ("a", "b"):
        shutil.copytree(RUNS / "resnet_w2", tmp_path / name)
    settings = tmp_path / "b" / "config.yaml"
    settings.write_text(settings.read_text().replace("num_workers: 0", "num_workers: 3"))
    versions = tmp_path / "b" / "environment.json"
    versions.write_text(versions.read_text().replace("2.28.9", "<b>2.99"))
    assert compare_main([str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path), "--quiet"]) == 0
    page = open_page(tmp_path / "compare.html")
    page.wait_for_selector("#curve[data-ready=yes]")
    text = page.inner_text("main")
    assert "no difference beyond noise" in text and "num_workers: 0 -> 3" in text and "<b>2.99" in text
    assert page.get_by_role("region", name="Steps in numbers").count() == 2
    assert axe_violations(page) == []


def test_drawing_leaves_the_users_matplotlib_backend_as_it_is() -> None:
    code = (
        "import matplotlib; matplotlib.use('svg')\n"
        "import rankscope.analysis.sweep.figures, rankscope.analysis.show.timeline.figure\n"
        "print(matplotlib.get_backend())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "svg"
