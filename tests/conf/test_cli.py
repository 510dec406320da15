"""The command `rankscope`: its table, and one line for what cannot be done."""

import sys

import pytest

from rankscope.conf import cli


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"rankscope {command}" in out for command in cli.COMMANDS)
    assert max(map(len, out.splitlines())) <= 80


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyse"]) == 2
    assert "no command 'analyse'" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["hydra", "psutil"])
def test_a_missing_extra_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("rankscope.launch", package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert cli.main(["run"]) == 2
    assert f"{package} is not installed; pip install 'rankscope[train]'" in capsys.readouterr().err
