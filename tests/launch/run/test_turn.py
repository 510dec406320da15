"""A run waits for its turn between its set-up and its first recorded step, for as long as it takes."""

import fcntl
import json
import time
from pathlib import Path

import pytest

from rankscope.conf import PassDir, RunDir
from rankscope.launch.system.rank_progress import RankProgress, stand_still

from ..conftest import TINY, read_json, start_launcher, wait_for

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def phases(pass_dir: PassDir) -> list[str]:
    return [json.loads(rank.progress.read_text())["phase"] for rank in pass_dir.ranks() if rank.progress.exists()]


@pytest.mark.distributed
@pytest.mark.parametrize("job", ["reference", "script"])
def test_a_run_waits_for_its_turn(job: str, tmp_path: Path) -> None:
    run_dir, script = RunDir(tmp_path / "run"), tmp_path / "train.py"
    script.write_text(SCRIPT)
    own = (f"script={script}", "world_size=2", "device=cpu")
    options = [f"launch.turn={tmp_path / 'turn'}", f"run_dir={run_dir.path}"]
    with (tmp_path / "turn").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # another run sets up
        launcher = start_launcher(*options, "passes=[plain]", base=TINY if job == "reference" else own)
        wait_for(lambda: phases(run_dir.for_pass("plain")) == ["turn", "turn"], "both ranks to wait")
        time.sleep(1.0)
        assert launcher.poll() is None and phases(run_dir.for_pass("plain")) == ["turn", "turn"]
    said = launcher.communicate(timeout=180)[1]
    assert launcher.returncode == 0, said
    assert read_json(run_dir.record)["status"] == "completed"


def test_a_stall_is_when_no_rank_gets_further() -> None:
    early, late = RankProgress(phase="warmup", step=1), RankProgress(phase="warmup", step=2)
    sets_up = RankProgress(phase="setup")
    assert stand_still({0: early}, {0: early}) and stand_still({}, {}) and stand_still({0: sets_up}, {0: sets_up})
    assert not stand_still({0: early}, {0: late})
    assert not stand_still({0: sets_up}, {0: sets_up, 1: sets_up})
