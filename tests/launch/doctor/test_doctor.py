"""The doctor: what it finds on this machine, and its words for what is missing."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankscope.conf import nsys_tool
from rankscope.launch.doctor import doctor
from rankscope.launch.doctor import nsys as nsys_doctor
from rankscope.launch.doctor import slurm as slurm_doctor
from rankscope.launch.system.torch_facts import TorchFacts


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


def test_it_starts_without_the_libraries_that_it_looks_for() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'psutil', 'hydra', 'omegaconf', 'nvtx', 'submitit'));"
        "from rankscope.conf import cli; sys.exit(cli.main(['doctor', '--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--runs-dir" in done.stdout, done.stderr


def test_an_option_that_does_not_exist_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--fast"]) == 2
    assert "rankscope doctor: " in capfd.readouterr().err


def hidden_nsys(folder: Path) -> Path:
    path = folder / "nsight-compute" / "2026.1" / "host" / "target-linux-x64" / "nsys"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\necho NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0\n")
    path.chmod(0o755)
    return path


def test_an_nsys_off_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = hidden_nsys(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(nsys_tool, "HIDDEN", (f"{tmp_path}/nsight-compute/*/host/target-linux-x64/nsys",))
    found, importer, nvtx = nsys_doctor.checks()
    assert found.state == "works" and "2025.3.1.90" in found.detail and str(hidden) in found.detail
    assert importer.state == "missing" and importer.fix is not None and "host-linux-x64" in importer.fix
    assert nvtx.state == "fails" and "no report" in nvtx.detail


def test_an_importer_of_another_release_is_none(tmp_path: Path) -> None:
    nsys = hidden_nsys(tmp_path)
    importer = nsys.parents[1] / "linux-desktop-glibc_2_11_3-x64" / "QdstrmImporter"
    importer.parent.mkdir()
    for release, found in (("2023.4.4.54", None), ("2025.3.1.90", importer)):
        importer.write_text(f"#!/bin/sh\necho NVIDIA Nsight Systems {release}\n")
        importer.chmod(0o755)
        assert nsys_tool.importer(nsys) == found


SBATCH = ("#!/bin/sh", "echo slurm 23.11.4")
PING = {
    "is up": (("echo 'Slurmctld(primary) at head is UP'",), "works", "23.11.4 (sbatch, srun); controller head is up"),
    "a backup is up": (
        ("echo 'Slurmctld(primary) at head is DOWN'", "echo 'Slurmctld(backup) at second is UP'", "exit 1"),
        "works",
        "controller second is up",
    ),
    "is down": (
        # as of SLURM 22.05 whose controller is not there
        ("echo 'Slurmctld(primary) at head is DOWN'", "echo '** RESTORE SLURMCTLD DAEMON TO SERVICE **'", "exit 1"),
        "fails",
        "controller head does not answer",
    ),
    "hangs": (("exec sleep 60",), "fails", "does not end within 0.3 s"),
    "no configuration": (
        ("echo 'scontrol: fatal: Could not establish a configuration source' >&2", "exit 1"),
        "fails",
        "scontrol: fatal: Could not establish a configuration source",
    ),
}


def program(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines))
    path.chmod(0o755)


@pytest.mark.parametrize(("ping", "state", "detail"), PING.values(), ids=PING)
def test_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ping: Sequence[str], state: str, detail: str) -> None:
    for name in ("sbatch", "srun"):
        program(tmp_path / name, *SBATCH)
    program(tmp_path / "scontrol", "#!/bin/sh", *ping)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setattr(slurm_doctor, "_PING_S", 0.3 if ping == ("exec sleep 60",) else 30)
    found = slurm_doctor.check()
    assert found.state == state and detail in found.detail and (found.fix is None) == (state == "works")


def test_slurm_of_which_something_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (slurm_doctor.check().state, slurm_doctor.check().detail) == ("missing", "neither sbatch nor srun on PATH")
    program(tmp_path / "srun", *SBATCH)
    assert slurm_doctor.check().detail == "slurm 23.11.4 (srun); no scontrol on PATH"
    program(tmp_path / "scontrol", "#!/bin/sh", *PING["is up"][0])
    assert slurm_doctor.check().detail.endswith("no sbatch")
    program(tmp_path / "sbatch", *SBATCH)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        found = slurm_doctor.check()
    assert found.state == "missing" and "submitit" in found.detail and "rankscope[slurm]" in str(found.fix)
    program(
        tmp_path / "sbatch", "#!/bin/sh", "echo 'sbatch: fatal: Could not establish a configuration source' >&2; false"
    )
    assert slurm_doctor.check().state == "fails" and "configuration" in slurm_doctor.check().detail


@pytest.mark.skipif(nsys_tool.find() is None, reason="nsys is not installed; .ci/install-nsys shows how to get it")
def test_the_real_nsys_sees_ranges() -> None:
    """Seen twice when the whole suite ran on a busy machine, never alone: all attempts lose the range. Then this says
    why and does not fail; tests/launch/test_nsys.py holds that ranges of whole runs arrive."""
    checks = nsys_doctor.checks()
    assert [check.name for check in checks] == ["nsys", "nsys importer", "nsys sees NVTX"]
    assert [check.state for check in checks[:2]] == ["works", "works"], checks
    if checks[2].state != "works":
        pytest.xfail(f"nsys lost the proof's range {nsys_doctor._ATTEMPTS} times: {checks[2].detail}")


@pytest.mark.parametrize("said", ["", "NVIDIA Nsight Systems"])
def test_a_program_without_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    path = tmp_path / "nsys"
    path.write_text(f"#!/bin/sh\necho {said}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [check.state for check in nsys_doctor.checks()] == ["fails"]
