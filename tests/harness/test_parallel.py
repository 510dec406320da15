"""FSDP2, tensor and pipeline parallelism of the reference model, with real ranks: the same training as with DDP."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.conf import ConfigError, parse_config
from rankscope.launch.main import main

from .parallel_losses import WAYS


def test_every_way_trains_the_same_model() -> None:
    """All have the same weights and samples. A pipeline's output matrix is not tied: only its first loss is equal."""
    program = Path(__file__).with_name("parallel_losses.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    ddp, *others = json.loads(done.stdout.strip().splitlines()[-1])
    for way, losses in zip(WAYS[1:], others, strict=True):
        same = 1 if way["name"] == "pp" else len(ddp)
        assert losses[:same] == pytest.approx(ddp[:same], rel=1e-4), way
        assert losses[-1] < losses[0]


@pytest.mark.parametrize(("name", "kinds"), [("fsdp", {"allgather", "allreduce"}), ("pp", {"send", "recv"})])
def test_recorded(name: str, kinds: set[str], tmp_path: Path) -> None:
    """gloo has no reduce-scatter of its own: it all-reduces."""
    keys = [f"parallel={name}", "world_size=2", "batch_size=4", "device=cpu", "steps=12", "seconds=0", "warmup_steps=3"]
    assert main([f"run_dir={tmp_path / 'run'}", "passes=[plain,torch]", *keys]) == 0
    found = json.loads((tmp_path / "run" / "analysis" / "summary.json").read_text())
    (row,) = found["dimensions"]
    assert row["dimension"] == name and set(row["kinds"]) == kinds
    assert found["throughput"]["samples_per_s"] > 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": {"name": "resnet"}}, "only for model=gpt"),
        ({"compile": "default"}, "compile=off"),
        ({"parallel": {"name": "pp", "micro_batches": 3}}, "cannot be cut into 3"),
        ({"parallel": {"name": "hsdp", "shards": 2}}, "use parallel=fsdp"),
        ({"parallel": {"name": "pp"}, "gradient_accumulation": 2}, "gradient_accumulation=1"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config({"world_size": 2, "parallel": {"name": "fsdp"}} | keys)


def test_ranks_of_one_replica_share_their_samples() -> None:
    keys = {"world_size": 4, "batch_size": 8}
    assert parse_config(keys | {"parallel": {"name": "tp"}}).samples_per_step == 8
    assert parse_config(keys | {"parallel": {"name": "fsdp"}}).samples_per_step == 32
    alone = keys | {"world_size": 1, "parallel": {"name": "tp"}, "ddp": {"enabled": False}}
    assert parse_config(alone).parallelism == "none"
