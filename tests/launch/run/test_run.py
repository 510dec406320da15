"""A run that goes well: what it leaves in its folder, what it prints, and its exit status: the analysis's."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rankscope.conf import RunDir, load_config
from rankscope.launch.configure.compose import compose
from rankscope.launch.main import main, with_literal_script, with_script_args
from rankscope.launch.run import record as recorder
from rankscope.launch.run.torchrun import rank_environment, torchrun_command
from rankscope.launch.system.environment import environment, variables
from rankscope.launch.system.processes import Stop
from rankscope.launch.system.torch_facts import torch_facts

from ..conftest import TINY, read_json, start_launcher

OVERRIDES = ("profile.repeat=2", "log_every=2")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """One run for all tests here."""

    run_dir: RunDir
    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    runs = tmp_path_factory.mktemp("runs")
    launcher = start_launcher(*OVERRIDES, f"runs_dir={runs}", "name=good")
    out, err = launcher.communicate(timeout=180)
    (folder,) = runs.iterdir()
    return Finished(run_dir=RunDir(folder), status=launcher.returncode, out=out, err=err)


@pytest.mark.distributed
def test_record_config_and_environment(finished: Finished) -> None:
    assert finished.status == 0, finished.err
    record = read_json(finished.run_dir.record)
    assert record["status"] == "completed"
    assert record["passes"] == {"plain": "completed", "torch": "completed"}
    assert record["failure"] is None
    assert record["start"] < record["end"]
    assert record["overrides"][: len(TINY)] == list(TINY)
    assert load_config(finished.run_dir.config) == compose(record["overrides"])
    assert read_json(finished.run_dir.environment)["torch"]["version"] == torch_facts().version
    assert "torch.distributed.run" in finished.run_dir.log.read_text()


@pytest.mark.distributed
def test_the_analysis_is_given_the_run_and_its_words_pass_through(finished: Finished) -> None:
    assert finished.out == f"ANALYSED {finished.run_dir.path}\n"
    assert "plain: starting 2 ranks" in finished.err


@pytest.mark.distributed
def test_the_torch_pass_covers_its_whole_schedule(finished: Finished) -> None:
    config = load_config(finished.run_dir.config)
    for rank in finished.run_dir.for_pass("torch").ranks():
        cycle = 2 + config.profile.active  # the process is warm: no steps to wait; one more is recorded
        assert pq.read_metadata(rank.steps).num_rows == cycle * config.profile.repeat
        assert all(rank.cycle_trace(cycle).stat().st_size > 0 for cycle in range(config.profile.repeat))


@pytest.mark.parametrize(("said", "status"), [(0, 0), (3, 3), (2, 2), (1, 1)])
def test_exit_status_of_the_analysis_is_kept(
    said: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recorder, "_ANALYSIS", ("-c", f"raise SystemExit({said})"))
    with Stop() as stop:
        assert recorder.analyse(RunDir(tmp_path), stop) == status
    assert ("rankscope analyze" in capfd.readouterr().err) == (said == 1)


def test_the_command_of_a_pass() -> None:
    command = torchrun_command(
        compose(["world_size=4"]), RunDir(Path("runs/a")), ["torch", "detail"], ["--rdzv-endpoint=localhost:0"]
    )
    assert command[:4] == [sys.executable, "-P", "-m", "torch.distributed.run"]
    assert {"--nproc-per-node=4", "--rdzv-endpoint=localhost:0", "--rdzv-id=a-torch", "--max-restarts=0"} < set(command)
    assert command[-4:] == ["-m", "rankscope.harness", "runs/a", "torch,detail"]


def test_what_follows_two_dashes_reaches_the_script_as_it_is() -> None:
    words = ["--lr=1e-4", "3", "", "a b", "it's", "x,y", "[z]", "${HOME}", "\\", "a\\'b", "\\${c}", "null", "--"]
    overrides = with_script_args(["script=train.py", "--", *words])
    assert compose(overrides).script_argv == words
    assert with_script_args(["world_size=2"]) == ["world_size=2"]


@pytest.mark.parametrize(
    "path", ["pä/t.py", "a[1]/(t).py", "2024", "1e5", "true", "a,b.py", "x=y.py", "~p/t.py", "it's.py"]
)
def test_a_script_s_path_is_taken_as_it_is(path: str) -> None:
    assert compose(with_literal_script([f"script={path}"])).script == path


def test_what_the_user_wrote_in_the_grammar_of_overrides_stays() -> None:
    for word in ("script=train.py", "script='ä.py'", "script=my.package", "script=", "script=${name}"):
        assert with_literal_script([word]) == [word]
    assert with_literal_script(["-m", "script=a.py,b.py"]) == ["-m", "script=a.py,b.py"]
    assert compose(["script=a.py", "script_args=[--a,1,true,'x y']"]).script_argv == ["--a", "1", "true", "x y"]
    assert compose(["script=a.py", "script_args='--a \"x y\"'"]).script_argv == ["--a", "x y"]


def test_threads_of_a_script_are_torchrun_s_own(tmp_path: Path) -> None:
    overrides = ["script=train.py", "world_size=2"]
    assert "OMP_NUM_THREADS" not in rank_environment(compose(overrides), RunDir(tmp_path), {})
    assert rank_environment(compose([*overrides, "threads=3"]), RunDir(tmp_path), {})["OMP_NUM_THREADS"] == "3"


def test_a_script_that_is_not_there_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["script=nowhere.py", f"runs_dir={tmp_path}"]) == 2
    assert "script=nowhere.py: no such file" in capfd.readouterr().err


def test_threads_of_a_rank(tmp_path: Path) -> None:
    def threads(overrides: list[str], base: dict[str, str]) -> str:
        return rank_environment(compose(overrides), RunDir(tmp_path), base)["OMP_NUM_THREADS"]

    assert threads(["world_size=1024", "batch_size=1"], {}) == "1"
    assert threads(["threads=3"], {"OMP_NUM_THREADS": "5"}) == "3"
    assert threads([], {"OMP_NUM_THREADS": "5"}) == "5"


def test_variables_are_picked_by_prefix_and_secrets_are_not() -> None:
    kept = {"NCCL_DEBUG": "INFO", "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "2"}
    dropped = {"HOME": "/root", "AWS_SECRET_ACCESS_KEY": "x", "SLURM_JWT": "x", "TORCH_HUB_TOKEN": "x"}
    assert variables(kept | dropped) == kept


def test_what_is_unknown_of_the_environment_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = environment(torch_facts())
    for key in ("gpus", "nsys"):
        assert found[key] is None
        assert "not on PATH" in found["reasons"][key]


def test_launch_loads_no_torch() -> None:
    code = (
        "import sys; from rankscope.launch import main; from rankscope.launch.configure import compose;"
        "from rankscope.launch.doctor import doctor; from rankscope.launch.system.torch_facts import torch_facts;"
        "compose.compose([]); torch_facts(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_cfg_prints_the_configuration_and_starts_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--cfg", "world_size=2", f"runs_dir={tmp_path / 'runs'}"]) == 0
    (tmp_path / "printed.yaml").write_text(capfd.readouterr().out)
    assert load_config(tmp_path / "printed.yaml") == compose(["world_size=2", f"runs_dir={tmp_path / 'runs'}"])
    assert not (tmp_path / "runs").exists()


def test_cfg_of_a_sweep_is_refused_and_starts_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "--cfg", "world_size=1,2", f"runs_dir={tmp_path / 'runs'}"]) == 2
    assert "--cfg: shows the configuration of one run" in capfd.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_option_that_does_not_exist_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--multi", "world_size=2"]) == 2
    assert "--multi: no such option" in capfd.readouterr().err


@pytest.mark.distributed
def test_a_start_whose_first_window_cannot_be_recorded(tmp_path: Path) -> None:
    """Gloo cannot time collectives, so the start goes on with the next window; modules are those of the detail pass."""
    asked = ("passes=[timed,torch,detail]", "profile.modules=[*]", f"run_dir={tmp_path / 'run'}")
    launcher = start_launcher(*asked, analysis=tuple(recorder._ANALYSIS))
    said = launcher.communicate(timeout=180)
    run_dir = RunDir(tmp_path / "run")
    assert launcher.returncode == 0, said
    record = run_dir.read_record()
    assert (record["status"], record["passes"]) == ("completed", {"torch": "completed", "detail": "completed"})
    assert pq.read_table(run_dir.analysis / "tables" / "modules.parquet").num_rows > 0
