"""The cache of compiled code: made again if it is damaged, never run if others may write to it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = "from rankscope.analysis.read.kineto.fast.scanner import kernels; print(len(kernels()))"


def compile_with(cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    return subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("cache")
    assert compile_with(found).stdout == "4\n"
    return found


def test_a_damaged_index_is_made_again(cache: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(cache, tmp_path / "cache")
    indexes = sorted(copy.rglob("*.nbi"))
    for index, kept in zip(indexes, (30, 0, 1, 1000), strict=True):
        index.write_bytes(index.read_bytes()[:kept])
    done = compile_with(copy)
    assert (done.stdout, done.stderr, done.returncode) == ("4\n", "", 0)


def test_a_folder_that_others_may_write_to_is_not_used(cache: Path, tmp_path: Path) -> None:
    """The index in it is a pickle that makes a folder."""
    shutil.copytree(cache, tmp_path, dirs_exist_ok=True)
    mark = tmp_path / "executed"
    program = b"cos\nmkdir\n(V" + str(mark).encode() + b"\ntR."
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(program)
    (folder,) = (tmp_path / "rankscope").glob("numba-*")
    folder.chmod(0o777)
    assert compile_with(tmp_path).stdout == "4\n"
    assert not mark.exists()
    folder.chmod(0o700)
    compile_with(tmp_path)
    assert mark.exists()  # otherwise this test would show nothing
