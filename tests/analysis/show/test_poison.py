"""Every text of a recording, replaced by the same poison: no output of any command may act on it."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.conf.cli import main
from rankscope.conf.plain_text import cell, drawn_text, markdown, visible

DATA = Path(__file__).parents[3] / "tests" / "data"
POISON = "\x1b]0;owned\x07\x1b[2J[/x][link=http://x]|<img src=x onerror=alert(1)>$\\frac$=1+1\u202e\r"
_STRUCTURE = {"ph", "cat", "ts", "dur", "pid", "tid", "id", "schemaVersion", "layout", "status", "ProfilerStep"}


def poisoned(value: Any, key: str = "") -> Any:
    """Return `value` with the poison at the end of each text; structure, such as the kind of an event, is kept."""
    if isinstance(value, dict):
        return {name: item if name in _STRUCTURE else poisoned(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item, key) for item in value]
    if not isinstance(value, str) or value.startswith("ProfilerStep") or not value:
        return value
    try:
        return json.dumps(poisoned(json.loads(value))) if value[0] in "[{" else value + POISON
    except ValueError:
        return value + POISON


def poison_run(run: Path) -> None:
    """Poison the traces, rank.json, run.json and environment.json of a run folder."""
    for path in run.rglob("trace*.json.gz"):
        trace = poisoned(json.loads(gzip.decompress(path.read_bytes())))
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    for path in [*run.rglob("rank.json"), run / "run.json", run / "environment.json"]:
        if path.exists():
            path.write_text(json.dumps(poisoned(json.loads(path.read_text()))))
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("name: run", f"name: {json.dumps(POISON)}"))


def harmless(text: str) -> bool:
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def copy_run(folder: Path) -> Path:
    run = shutil.copytree(DATA / "runs" / "resnet_w2", folder / "run")
    poison_run(run)
    return run


def copy_traces(folder: Path) -> Path:
    traces = shutil.copytree(DATA / "traces" / "two_groups_w2", folder / f"traces{POISON.replace('/', '')}")
    for path in traces.glob("*.json*"):
        packed = path.suffix == ".gz"
        text = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
        changed = json.dumps(poisoned(json.loads(text))).encode()
        path.write_bytes(gzip.compress(changed, 1) if packed else changed)
    return traces


@pytest.mark.parametrize("make", [copy_run, copy_traces])
@pytest.mark.parametrize("command", ["analyze", "timeline"])
def test_poison_stays_text(
    command: str, make: Callable[[Path], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place, out = make(tmp_path), tmp_path / "out"
    assert main([command, str(place), "--out", str(out)]) in (0, 2, 3)
    look_at(out, capfd)


def make_sweep(folder: Path) -> Path:
    """Return a sweep of two poisoned points, with poison in its record."""
    for number in ("000", "001"):
        point = shutil.copytree(DATA / "runs" / "resnet_w2", folder / "sweep" / "points" / number)
        poison_run(point)
    listed = [
        {"id": f"{number}", "overrides": [POISON], "folder": number, "status": status, "failure": {"message": POISON}}
        for number, status in (("000", "completed"), ("001", "failed"))
    ]
    record = {"layout": 1, "overrides": [POISON], "points": listed}
    (folder / "sweep" / "sweep.json").write_text(json.dumps(record))
    return folder / "sweep"


@pytest.mark.parametrize("command", ["report", "compare", "tensorboard"])
def test_poison_in_a_sweep_stays_text(command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sweep, out = make_sweep(tmp_path), tmp_path / "out"
    words = [str(sweep), str(sweep)] if command == "compare" else [str(sweep), "--out", str(out)]
    assert main([command, *words]) in (0, 2, 3)
    look_at(out, capfd, some=command == "report")


def look_at(out: Path, capfd: pytest.CaptureFixture[str], *, some: bool = True) -> None:
    """Look for poison that acts: on the terminal, in pages, figures, Markdown and CSV."""
    printed = capfd.readouterr()
    assert harmless(printed.out) and harmless(printed.err)
    pages = [path for path in out.rglob("*") if path.suffix in (".html", ".svg", ".md", ".csv")]
    assert bool(pages) == some
    for page in pages:
        text = re.sub(r"(?s)\n```\n.*?\n```\n", "", page.read_bytes().decode())  # code is shown as it is
        assert harmless(text), page.name
        assert page.suffix == ".csv" or "<img src=x" not in text, page.name
        assert page.suffix != ".csv" or not re.search(r"(?m)(^|,)\"?[=+@]", text), page.name
        if page.suffix == ".md":
            rows = [line for line in text.splitlines() if line.startswith("|")]
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) <= 2  # two tables


def test_a_message_about_a_missing_file_cannot_act(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", f"/nowhere/{POISON}"]) == 2
    assert harmless(capfd.readouterr().err)


def test_each_kind_of_text() -> None:
    assert visible("a\x1b[0m\tb\nc\u202e") == "a\\x1b[0m\tb\nc\\u202e"
    assert markdown("a|<b>\nc") == "a\\|&lt;b> c"
    assert [cell(text) for text in ("=1", "@a", "-x", "ok")] == ["'=1", "'@a", "'-x", "ok"]
    assert drawn_text("$x$") == r"\$x\$"


@pytest.mark.parametrize("name", ["analysis", "analysis/tables"])
def test_reports_are_not_written_through_a_link(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(DATA / "runs" / "resnet_w2", tmp_path / "run")
    (tmp_path / "victim").mkdir()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(tmp_path / "victim")
    assert main(["analyze", str(run)]) == 2
    assert f"{name}: a link" in capfd.readouterr().err
    assert not list((tmp_path / "victim").iterdir())


def test_a_link_in_a_run_folder_shows_nothing_of_this_machine(tmp_path: Path) -> None:
    run = shutil.copytree(DATA / "runs" / "resnet_w2", tmp_path / "run")
    (tmp_path / "secret").write_text("TOPSECRET")
    (run / "config.yaml").unlink()
    (run / "config.yaml").symlink_to(tmp_path / "secret")
    assert main(["analyze", str(run)]) in (0, 3)
    assert all("TOPSECRET" not in path.read_text() for path in (run / "analysis").rglob("*.[hmj]*"))
