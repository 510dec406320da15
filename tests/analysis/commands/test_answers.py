"""`rankscope analyze` answers the same question about unchanged files from what it kept, and only that."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.analysis.commands import answer
from rankscope.analysis.commands.analyze import main
from rankscope.analysis.core.json import Json
from rankscope.analysis.options import Options
from rankscope.conf.user_cache import user_folder

TRACES = Path(__file__).parents[2] / "data" / "traces" / "comm_bound_w4"


@pytest.fixture
def analyses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Give the test a cache of its own, and return the list of analyses that really ran."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ran: list[Path] = []
    make = answer.make

    def counted(paths: tuple[Path, ...], options: Options) -> tuple[Json, Callable[[Path], None]]:
        ran.extend(paths)
        return make(paths, options)

    monkeypatch.setattr(answer, "make", counted)
    return ran


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _ask(traces: Path, out: Path, *more: str) -> dict[str, bytes]:
    assert main([str(traces), "--out", str(out), "--quiet", *more]) == 0
    return _files(out)


def test_the_same_question_gets_the_same_files(analyses: list[Path], tmp_path: Path) -> None:
    first, again = _ask(TRACES, tmp_path / "a"), _ask(TRACES, tmp_path / "b")
    assert first == again and len(analyses) == 1
    assert {"summary.json", "report.html", "report.md", "tables/steps.parquet"} <= set(first)
    assert main([str(TRACES), "--json", str(tmp_path / "s.json"), "--quiet"]) == 0 and len(analyses) == 1
    assert json.loads((tmp_path / "s.json").read_text()) == json.loads(first["summary.json"])


def test_a_summary_alone_is_not_taken_for_a_report(analyses: list[Path], tmp_path: Path) -> None:
    assert main([str(TRACES), "--json", str(tmp_path / "s.json"), "--quiet"]) == 0
    assert "report.html" in _ask(TRACES, tmp_path / "a") and len(analyses) == 2


def _touch(traces: Path) -> None:
    os.utime(traces / "rank0.json.gz", ns=(1, 1))


def _add(traces: Path) -> None:
    (traces / "notes.json").write_text('{"a": 1}')


def _damage(_: Path) -> None:
    page = next((user_folder() / "answers").glob("*/report.html"))
    page.write_bytes(page.read_bytes()[:-100])


def _lose(_: Path) -> None:
    next((user_folder() / "answers").glob("*/tables/steps.parquet")).unlink()


@pytest.mark.parametrize("change", [_touch, _add, _damage, _lose])
def test_a_changed_input_or_a_damaged_answer_is_analysed_again(
    change: Callable[[Path], None], analyses: list[Path], tmp_path: Path
) -> None:
    traces = tmp_path / "traces"
    shutil.copytree(TRACES, traces)
    first = _ask(traces, tmp_path / "a")
    change(traces)
    again = _ask(traces, tmp_path / "b")
    assert len(analyses) == 2 and again["summary.json"] == first["summary.json"]
    assert _ask(traces, tmp_path / "c") == again and len(analyses) == 2


@pytest.mark.parametrize("more", [["--only-steps", "5:"], ["--limits", "high=0.5"], ["--no-cache"]])
def test_another_question_is_another_answer(more: list[str], analyses: list[Path], tmp_path: Path) -> None:
    _ask(TRACES, tmp_path / "a")
    _ask(TRACES, tmp_path / "b", *more)
    assert len(analyses) == 2


@pytest.mark.parametrize("name", ["", "answers"])
def test_a_folder_that_others_may_write_to_gives_no_answer(name: str, analyses: list[Path], tmp_path: Path) -> None:
    """A page in it could be anybody's."""
    _ask(TRACES, tmp_path / "a")
    place = user_folder() / name
    place.chmod(0o777)
    _ask(TRACES, tmp_path / "b")
    assert len(analyses) == 2
    place.chmod(0o700)
    _ask(TRACES, tmp_path / "c")
    assert len(analyses) == 2
