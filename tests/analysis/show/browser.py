"""What tests of pages share: how a page is opened, and axe's checks of accessibility."""

from pathlib import Path
from typing import Any, Protocol

import pytest


class OpenPage(Protocol):
    def __call__(self, path: Path, width: int = 1280) -> Any: ...


def axe_violations(page: Any) -> list[str]:
    """Return what axe-core finds wrong: contrast, names, roles, focus, structure."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    found = axe.Axe().run(page).response["violations"]
    return [f"{item['id']}: {node['html'][:160]}" for item in found for node in item["nodes"]]
