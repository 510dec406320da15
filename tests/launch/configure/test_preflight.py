"""What this machine cannot do is said before anything starts; GPUs and disks are made up here."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from rankscope.conf import ConfigError, RunConfig, parse_config
from rankscope.launch.configure.preflight import refuse
from rankscope.launch.system.torch_facts import TorchFacts

NO_TORCH = TorchFacts(error="torch is not installed; pip install 'rankscope[train]'")
NO_GPU = TorchFacts(version="2.13.0+cpu", error="this torch was built without CUDA")
TWO_GPUS = TorchFacts(version="2.11.0", cuda="12.8", nccl="2.27.3", devices=({"name": "H100"}, {"name": "H100"}))

REFUSED: list[tuple[TorchFacts, dict[str, Any], tuple[str, ...]]] = [
    (NO_TORCH, {}, ("pip install 'rankscope[train]'",)),
    (NO_GPU, {"device": "cuda"}, ("device=cuda", "without CUDA", "device=cpu")),
    (NO_GPU, {"backend": "nccl"}, ("backend=nccl", "gloo")),
    (TWO_GPUS, {"world_size": 3, "device": "cuda"}, ("world_size=3", "needs 3 GPUs", "has 2")),
    (TWO_GPUS, {"world_size": 4}, ("world_size=4", "needs 4 GPUs", "has 2")),
    (
        TWO_GPUS,
        {"world_size": 6, "run_dir": "new", "launch": {"nnodes": 2, "rdzv_endpoint": "head:29400"}},
        ("needs 3 GPUs on each of 2 nodes", "has 2"),
    ),
    (
        NO_GPU,
        {"world_size": 2, "run_dir": "new", "launch": {"nnodes": 2, "rdzv_endpoint": "localhost:0"}},
        ("launch.nnodes=2", "rdzv_endpoint=localhost:0"),
    ),
    (NO_GPU, {"world_size": 2, "launch": {"nnodes": 2}}, ("run_dir=null", "launch.nnodes=2", "meet in the run folder")),
    (NO_GPU, {"launch": {"turn": "/nowhere/turn"}}, ("launch.turn=/nowhere/turn", "No such file", "folder")),
    (NO_GPU, {"launch": {"min_free_mb": 10**9}}, ("MiB free", "launch.min_free_mb=1000000000")),
]


@pytest.mark.parametrize(("facts", "data", "parts"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusal(facts: TorchFacts, data: dict[str, Any], parts: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse(parse_config({"runs_dir": str(tmp_path)} | data), facts)
    message = str(refused.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("facts", "data"),
    [(NO_GPU, {"world_size": 8}), (TWO_GPUS, {"world_size": 2}), (TWO_GPUS, {"world_size": 8, "device": "cpu"})],
)
def test_what_can_run_is_let_through(facts: TorchFacts, data: dict[str, Any], tmp_path: Path) -> None:
    refuse(parse_config({"runs_dir": str(tmp_path / "not" / "yet")} | data), facts)


def test_the_disk_of_the_run_folder_is_the_one_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, asked = shutil.disk_usage(tmp_path)._replace(free=0), []

    def disk_usage(path: Path) -> object:
        asked.append(path)
        return full

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    with pytest.raises(ConfigError, match="0 MiB free"):
        refuse(parse_config({"run_dir": str(tmp_path / "deep" / "mine")}), NO_GPU)
    assert asked == [tmp_path]


def test_not_under_another_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError, match="without torchrun around it"):
        refuse(parse_config({"runs_dir": str(tmp_path)}), NO_GPU)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("jobs/train", "no such file; did you mean jobs/train.py?"),
        ("jobs/trian.py", "no such file; did you mean jobs/train.py?"),
        ("jobs", "a folder without a __main__.py; give a file in it (jobs/train.py)"),
        ("train", "no such file"),
        ("jobs/all.ipynb", "a notebook; make a script of it"),
    ],
)
def test_a_script_that_is_none_is_refused_with_what_there_is(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.py").write_text("")
    with pytest.raises(ConfigError) as refused:
        refuse(RunConfig(script=script), NO_GPU)
    assert said in str(refused.value)
    refuse(RunConfig(script="jobs/train.py"), NO_GPU)
    refuse(RunConfig(script="json.tool"), NO_GPU)  # a module, as for `python -m`
