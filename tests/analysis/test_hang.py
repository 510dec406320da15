"""`rankscope hang` on jobs of three real ranks that hang, from the dumps and stacks that they leave."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.analysis.commands.hang import main

DATA = Path(__file__).parents[1] / "data"
CASES = {
    "loader": ("missing_rank", [1], "did not come to all_reduce number 4"),
    "crashed": ("no_dump", [1], "left no dump"),
    "order": ("different_order", [0, 1], "another order: broadcast"),
    "sizes": ("different_call", [1], "all_reduce of [[20]] as number 4"),
    "groups": ("different_order", None, "circle"),
}


def hung(case: str, folder: Path, form: str) -> None:
    program = Path(__file__).with_name("hang_job.py")
    world = 3 if case in ("sizes", "crashed") else 2
    ranks = [
        subprocess.Popen([sys.executable, str(program), case, str(rank), str(world), str(folder), form])
        for rank in range(world)
    ]
    for process in ranks:
        assert process.wait(120) == 0


@pytest.mark.parametrize(("case", "form"), [(case, "pickle" if case == "loader" else "json") for case in CASES])
def test_the_blocking_rank_is_named(case: str, form: str, tmp_path: Path) -> None:
    cause, ranks, said = CASES[case]
    hung(case, tmp_path, form)
    status = main([str(tmp_path), "--json", str(tmp_path / "found.json"), "--quiet"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["cause"] == cause and said in " ".join(found["lines"]), found["lines"]
    assert ranks is None or found["ranks"] == ranks
    assert status == (3 if case == "crashed" else 0)
    if case == "loader":
        assert "hang_job.py" in found["places"]["1"] and "wait_for_a_batch" in found["places"]["1"]


@pytest.mark.parametrize(
    ("case", "cause", "ranks"),
    [
        ("missing", "missing_rank", [1]),
        ("loader", "missing_rank", [1]),
        ("order", "different_order", [0, 1]),
        ("sizes", "different_call", [0, 1]),
        ("crash", "no_dump", [1]),
    ],
)
def test_what_the_watchdog_of_nccl_left(case: str, cause: str, ranks: list[int], tmp_path: Path) -> None:
    """Dumps of NCCL 2.28 and torch 2.11: the fourth collective of two ranks does not end (tests/data/hangs)."""
    status = main([str(DATA / "hangs" / case), "--json", str(tmp_path / "found.json"), "--quiet"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["cause"], found["ranks"]) == (cause, ranks)
    assert "all_reduce number 4" in " ".join(found["lines"])
    assert status == (3 if case == "crash" else 0)


def test_a_pickle_that_is_a_program_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Program:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (Path(tmp_path / "ran"),)  # type: ignore[return-value]

    (tmp_path / "dump_0").write_bytes(pickle.dumps({"entries": [Program()]}))
    assert main([str(tmp_path)]) == 2
    assert not (tmp_path / "ran").exists()
    assert "a damaged dump: it wants to import" in capsys.readouterr().err


def test_a_folder_without_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.json").write_text("{}")
    assert main([str(tmp_path)]) == 2
    assert "TORCH_FR_BUFFER_SIZE" in capsys.readouterr().err


def test_a_dump_of_a_few_bytes_that_stands_for_billions(tmp_path: Path) -> None:
    """A pickle keeps that a list is in another one many times; as text it would have 10^9 numbers."""
    sizes: list[object] = [1] * 10
    for _ in range(8):
        sizes = [sizes] * 10
    for rank, number in enumerate((1, 2)):
        called = {"collective_seq_id": number, "profiling_name": "nccl:all_reduce", "input_sizes": sizes}
        odd = [called | {"collective_seq_id": 10**5000}, called | {"frames": [{"filename": sizes, "line": sizes}]}]
        dump = {"pg_config": {"0": {"name": sizes, "ranks": [0, 10**5000]}}, "entries": [called, *odd]}
        (tmp_path / f"dump_{rank}").write_bytes(pickle.dumps(dump))
    assert main([str(tmp_path), "--quiet"]) in (0, 3)
