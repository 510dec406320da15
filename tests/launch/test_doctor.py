"""The doctor: what it finds on this machine, and its words for what is missing."""

import json
from pathlib import Path

import pytest

from rankscope.launch import doctor
from rankscope.launch.torch_facts import TorchFacts


@pytest.mark.distributed
def test_this_machine_can_run_the_main_job(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--json", "--runs-dir", str(tmp_path / "runs")]) == 0
    found = json.loads(capfd.readouterr().out)
    states = {check["name"]: check["state"] for check in found["checks"]}
    assert found["able"]
    assert states["2 ranks, gloo all-reduce"] == "works"
    assert all(check["fix"] for check in found["checks"] if check["state"] != "works")
    assert not (tmp_path / "runs").exists()


def test_without_torch_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "torch_facts", lambda: TorchFacts(error="torch is not installed"))
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "hydra-core" else "1.0")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("COLUMNS", "80")
    assert doctor.main(["--runs-dir", str(tmp_path)]) == 2
    out = capfd.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    words = out.replace("│", " ").split()
    assert "'rankscope[train]'" in words
    assert "hydra-core" in words
    assert "cannot run here yet" in out


def test_an_nsys_off_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "nsight-compute" / "2026.1" / "host" / "target-linux-x64" / "nsys"
    hidden.parent.mkdir(parents=True)
    hidden.touch()
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(doctor, "_HIDDEN_NSYS", (f"{tmp_path}/nsight-compute/*/host/**/nsys",))
    check = doctor._nsys()
    assert check.fix is not None
    assert str(hidden.parent) in check.fix
