"""Every text of a recording, replaced by the same poison: no output of any command may act on it."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.conf.cli import main
from rankscope.conf.plain_text import cell, drawn_text, markdown, visible

from .poisoned import DATA, POISON, make_exports, make_run, make_sweep, make_traces, poison

Make = Callable[[Path], Path]
# Each with its commands; OUT stands for a new folder. The first makes pages, which the others read or lack.
COMMANDS: dict[Make, list[list[str]]] = {
    make_run: [
        ["analyze", "PATH", "--out", "OUT", "--ceilings", "CEILINGS"],
        ["timeline", "PATH", "--out", "OUT"],
        ["compare", "PATH", "PATH", "--work", "--out", "OUT"],
        ["explain", "PATH"],
        ["whatif", "PATH"],
        ["tensorboard", "PATH", "--out", "OUT"],
    ],
    make_traces: [
        ["analyze", "PATH", "--out", "OUT"],
        ["analyze", "PATH", "--json", "-"],
        ["timeline", "PATH", "--out", "OUT", "--full"],
        ["ingest", "PATH", "--out", "OUT"],
        ["explain", "PATH", "--json"],
        ["whatif", "PATH", "compute*2"],
        ["compare", "PATH", "PATH"],
    ],
    make_exports: [
        ["analyze", "PATH", "--out", "OUT"],
        ["timeline", "PATH", "--out", "OUT"],
        ["nsys-strip", "FILE", "--out", "OUT"],
    ],
    make_sweep: [["report", "PATH", "--out", "OUT"], ["compare", "PATH", "PATH", "--out", "OUT"]],
}


@pytest.mark.parametrize("make", COMMANDS)
def test_poison_stays_text(make: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place, ceilings = make(tmp_path), tmp_path / "ceilings.json"
    shutil.copy(DATA / "ceilings" / "h100_w4.json", ceilings)
    poison(ceilings)
    for number, words in enumerate(COMMANDS[make]):
        out = tmp_path / f"out{number}\udcff"
        instead = {"PATH": place, "OUT": out, "CEILINGS": ceilings, "FILE": next(place.glob("*.sqlite"), place)}
        status = main([str(instead.get(word, word)) for word in words])
        printed = capfd.readouterr()
        assert status in (0, 3), printed
        assert harmless(printed.out) and harmless(printed.err), words
        look_at(out)


def harmless(text: str) -> bool:
    return not re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\U000e0000-\U000e007f]", text
    )


def look_at(out: Path) -> None:
    """Look for poison that acts in pages, figures, Markdown and CSV, and in the files for other tools."""
    for path in out.rglob("*"):
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".gz":
            json.loads(gzip.decompress(path.read_bytes()))
        elif "tfevents" in path.name:
            assert POISON[:10].encode() not in path.read_bytes()
    for page in [path for path in out.rglob("*") if path.suffix in (".html", ".svg", ".md", ".csv", ".txt")]:
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
    assert visible("\u061c\u2067\u200b\U000e0041é中") == "\\u061c\\u2067\\u200b\\U000e0041é中"
    assert markdown("a|<b>\nc") == "a\\|&lt;b> c"
    assert [cell(text) for text in ("=1", "@a", "-x", "ok")] == ["'=1", "'@a", "'-x", "ok"]
    assert drawn_text("$x$") == r"\$x\$"


@pytest.mark.parametrize("command", ["analyze", "timeline", "tensorboard", "report"])
@pytest.mark.parametrize("name", ["analysis", "analysis/tables"])
def test_reports_are_not_written_through_a_link(
    name: str, command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = make_sweep(tmp_path) if command == "report" else DATA / "runs" / "resnet_w2"
    place = shutil.copytree(made, tmp_path / "recording")
    (tmp_path / "victim").mkdir()
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).symlink_to(tmp_path / "victim")
    assert main([command, str(place)]) == 2
    assert f"{name}: a link" in capfd.readouterr().err
    assert not list((tmp_path / "victim").iterdir())


def test_a_link_in_a_run_folder_shows_nothing_of_this_machine(tmp_path: Path) -> None:
    run = shutil.copytree(DATA / "runs" / "resnet_w2", tmp_path / "run")
    (tmp_path / "secret").write_text("TOPSECRET")
    (run / "config.yaml").unlink()
    (run / "config.yaml").symlink_to(tmp_path / "secret")
    assert main(["analyze", str(run)]) in (0, 3)
    assert all("TOPSECRET" not in path.read_text() for path in (run / "analysis").rglob("*.[hmj]*"))


@pytest.mark.parametrize("name", ["passes", "passes/torch/ranks/1", "passes/torch/ranks/1/trace.json.gz"])
def test_a_link_out_of_a_run_folder_is_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(DATA / "runs" / "resnet_w2", tmp_path / "run")
    (run / name).rename(tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    for words in (["analyze", str(run)], ["compare", str(run), str(run)]):
        assert main(words) == 2
        assert f"{name}: a link out of the run folder" in capfd.readouterr().err
