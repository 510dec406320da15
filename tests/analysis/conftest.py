"""The user's cache folder is a temporary one in these tests."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.read.kineto import reader as kineto

from .show.browser import OpenPage


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if kineto.has_scanner():  # compiled code stays where it always is: compiling takes seconds
        from rankscope.analysis.read.kineto.fast.machine_code import kernels

        kernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(params=[False, True], ids=["msgspec", "scanner"], scope="session")
def fast(request: pytest.FixtureRequest) -> bool:
    """Both ways to read a trace; the accelerated one where it is installed."""
    if request.param and not kineto.has_scanner():
        pytest.skip("numba is not installed: pip install 'rankscope[fast]'")
    return bool(request.param)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Opens a file in a tab; at the end of the test it must have neither complained nor asked for anything else."""
    complaints: list[str] = []
    asked: list[str] = []
    pages = []

    def opened(path: Path, width: int = 1280) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900})
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append("a name from a file was run as a script"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for page in pages:
        page.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
