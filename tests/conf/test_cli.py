"""The command `rankscope`: its table, and one line for what cannot be done."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from rankscope.conf import cli

HANG = Path(__file__).parents[1] / "data" / "hangs" / "order"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--help"], ["-h"], ["help"]):
        assert cli.main(words) == 0
        out = capsys.readouterr().out
        assert all(f"rankscope {command}" in out for command in cli.COMMANDS)
        assert max(map(len, out.splitlines())) <= 80
    assert cli.main([]) == 2
    assert capsys.readouterr().out == out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["-V"]) == cli.main(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and first.startswith("rankscope ")


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyse"]) == 2
    assert "rankscope: no command 'analyse'" in capsys.readouterr().err


def test_arguments_reach_a_command_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags that the group has too, and what `--` keeps apart."""
    given: list[list[str]] = []

    def main(argv: list[str]) -> int:
        given.append(argv)
        return 3

    module = types.ModuleType("stand_in")
    vars(module)["main"] = main
    monkeypatch.setitem(sys.modules, "stand_in", module)
    monkeypatch.setitem(cli.COMMANDS, "run", ("stand_in", "main", ""))
    words = ["-m", "--help", "-V", "a=1", "--", "--lr", "--", ""]
    assert cli.main(["run", *words]) == 3
    assert cli.main(["run", "--", "x"]) == 3
    assert given == [words, ["--", "x"]]


@pytest.mark.parametrize("package", ["hydra", "psutil"])
def test_a_missing_extra_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("rankscope.launch", package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["run"]) == 2
    assert f"{package} is not installed; pip install 'rankscope[train]'" in capsys.readouterr().err


def test_the_table_alone_loads_nothing_heavy() -> None:
    code = (
        "import sys; from rankscope.conf import cli; cli.main(['--help']);"
        "sys.exit(str({'torch', 'pandas', 'numpy', 'pyarrow', 'hydra', 'psutil', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "set()"


@pytest.mark.parametrize("words", [["analyze", "/nowhere/ü"], ["--help"]])
def test_a_poor_or_full_terminal_is_no_bug(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "rankscope.conf.cli", *words],
            env=os.environ | {"PYTHONIOENCODING": "ascii"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(("redirected", "status"), [(">&-", 0), (">&- 2>&-", 0), ("> pipe.json", 0)])
def test_closed_streams_change_no_status(redirected: str, status: int, tmp_path: Path) -> None:
    command = f"{sys.executable} -m rankscope.conf.cli hang {HANG} --json found.json {redirected}"
    ended = subprocess.run(command, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (status, "")
    assert json.loads((tmp_path / "found.json").read_text())["cause"] == "different_order"


def test_json_goes_into_pipes_and_through_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "found.json")
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE) as reader:
        for name in ("link", "pipe"):
            assert cli.main(["hang", str(HANG), "--json", str(tmp_path / name), "--quiet"]) == 0
        assert reader.communicate(timeout=60)[0] == (tmp_path / "found.json").read_bytes()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("word", "said"),
    [("rnu", "did you mean run?"), ("analyse", "did you mean analyze?"), ("a.py", "rankscope run script=a.py?")],
)
def test_a_wrong_command_gets_the_nearest(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "own", "value"), [("analyze", None, "1"), ("timeline", "4", "4"), ("run", None, None)]
)
def test_only_commands_that_start_no_program_limit_threads(
    command: str, own: str | None, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's script inherits the environment of `rankscope run`."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", own or "")
    if own is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    cli._without_idle_threads([command])
    assert os.environ.get("OPENBLAS_NUM_THREADS") == value
