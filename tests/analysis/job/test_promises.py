"""What findings promise, against what their fix saved when it was measured, on two H200s.

Recorded by `benchmarks/evidence.py --only scenarios`; without operators, so that they are small. The gains are the
median plain step with the fault minus that with the fix, each of another run.
"""

from pathlib import Path

import pytest

from rankscope.analysis import load
from rankscope.analysis.commands.whatif import main

from .archives import unpack

SAVED = {"pageable_copies": ("copy_bound", 15.55), "synchronize": ("sync_in_loop", 3.31)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("two_gpus/promised", tmp_path_factory.mktemp("promised"))


@pytest.mark.parametrize("job", SAVED)
def test_a_finding_promises_no_more_than_its_fix_saved(job: str, recorded: Path) -> None:
    """The replay without the fault gives it within 8 %, with the most or the least work of the host.

    What follows a copy may be work of its own, so `copy_bound` promises only the copies: 7.6 ms.
    """
    name, saved = SAVED[job]
    (found,) = [item for item in load(recorded / job).findings if item.id == name]
    low, high = found.evidence["replayed_ms"]
    assert found.recoverable_ms is not None and 0.45 * saved <= found.recoverable_ms <= saved
    assert min(abs(low - saved), abs(high - saved)) <= 0.08 * saved


def test_a_gap_behind_a_wait_is_promised_once(recorded: Path) -> None:
    found = [item.id for item in load(recorded / "synchronize").findings]
    assert "sync_in_loop" in found and "host_gap" not in found


def test_a_finding_and_whatif_give_the_same_step(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = load(recorded / "pageable_copies")
    assert main([str(recorded / "pageable_copies"), "copy_bound"]) == 0
    assert analysis.without.step_ms is not None
    (found,) = [item for item in analysis.findings if item.id == "copy_bound"]
    left = analysis.without.step_ms - found.evidence["replayed_ms"][1]
    assert f"With copy=instant a step takes about {left:.2f} ms" in " ".join(capsys.readouterr().out.split())
