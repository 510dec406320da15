"""Compiled templates stay in the user's cache; what they include from other files does not."""

from pathlib import Path

import pytest

from rankscope.analysis.show import pages


def test_a_page_has_the_present_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an update in which the script changed and the template did not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = {"page.html.jinja": '<script>{{ "page.js"|file|safe }}</script>', "page.js": "first"}
    monkeypatch.setattr(pages, "text_of", files.__getitem__)
    made = []
    for script in ("first", "second"):
        files["page.js"] = script
        pages.environment.cache_clear()  # another process
        made.append(pages.render("page.html.jinja"))
    pages.environment.cache_clear()
    assert made == [f"<script>{script}</script>" for script in ("first", "second")]
    assert any(tmp_path.rglob("*.cache"))
