"""The scanner's kept machine code: made again if it is damaged, never run if others may write to it."""

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.analysis.rank.workers import use_scanner
from rankscope.analysis.read import sources
from rankscope.analysis.read.kineto import reader
from rankscope.analysis.read.kineto.fast import machine_code

pytest.importorskip("llvmlite", reason="numba is not installed: pip install 'rankscope[fast]'")

# Counts the line ends of a text, and says which compilers had to be imported for it.
COUNT = """
import sys
import numpy as np
from rankscope.analysis.read.kineto.fast.machine_code import kernels
text = np.frombuffer(b"a\\nb\\n" + bytes(100), np.uint8)
print(kernels().count_lines(text.ctypes.data, 5), *[name for name in ("numba", "llvmlite") if name in sys.modules])
"""
TRACE = Path(__file__).parents[2] / "data" / "traces" / "big_baseline_w4" / "rank0.json.gz"
COMPILED, KEPT, KEPT_AS_OBJECT = "2 numba llvmlite\n", "2\n", "2 llvmlite\n"
needs_linker = pytest.mark.skipif(shutil.which("ld") is None, reason="ld is not installed: apt-get install binutils")


def count_with(cache: Path, code: str = COUNT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("cache")
    assert count_with(found).stdout == COMPILED
    return found


def kept_in(cache: Path) -> Path:
    (file,) = (cache / "rankscope" / "scanner").iterdir()
    return file


@needs_linker
def test_kept_code_needs_no_compiler(cache: Path) -> None:
    done = count_with(cache)
    assert (done.stdout, done.stderr, done.returncode) == (KEPT, "", 0)


@pytest.mark.parametrize("lacking", ["linker", "temporary folder"])
def test_without_a_library_llvm_loads_it(lacking: str, tmp_path: Path) -> None:
    code = COUNT
    if lacking == "temporary folder":
        code = f"import tempfile; tempfile.tempdir = {str(tmp_path / 'none')!r}\n{COUNT}"
    variables = {"PATH": str(tmp_path)} if lacking == "linker" else {}
    done = [count_with(tmp_path, code, **variables) for _ in range(2)]
    assert [each.stdout for each in done] == [COMPILED, KEPT_AS_OBJECT]
    assert [each.stderr for each in done] == ["", ""]


@needs_linker
def test_a_library_that_may_not_run_is_replaced(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the cache's folder may be forbidden to run (mounted with noexec), or only on some hosts."""
    code = machine_code.loaded(kept_in(cache))
    assert code is not None

    def refused(path: Path) -> machine_code.Kernels:
        raise OSError("failed to map segment from shared object")

    monkeypatch.setattr(machine_code, "_of_library", refused)
    assert machine_code.loaded(kept_in(cache)) is None
    paths = tmp_path / "kernels.so", tmp_path / "kernels.o"
    machine_code._keep(b"object", kept_in(cache).read_bytes(), *paths)
    assert [path.exists() for path in paths] == [False, True]


def test_a_processor_with_other_words_is_asked_of_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    known = machine_code._processor()
    monkeypatch.setattr(platform, "machine", lambda: "ppc64le")
    assert machine_code._read_processor() == [] and machine_code._processor() != known


def test_damaged_code_is_never_loaded(cache: Path, tmp_path: Path) -> None:
    """Loading it would end the process."""
    whole = kept_in(cache).read_bytes()
    assert machine_code.loaded(kept_in(cache)) is not None
    flipped = whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:]
    for number, damaged in enumerate((b"", whole[:10], whole[:1000], flipped, whole + b"0")):
        file = tmp_path / f"{number}{kept_in(cache).suffix}"
        file.write_bytes(damaged)
        assert machine_code.loaded(file) is None
    assert machine_code.loaded(tmp_path / "missing") is None


def test_a_small_trace_never_compiles(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes seconds: the first command of a user, or the first one on another processor, must not wait."""
    monkeypatch.setattr(machine_code, "_found", functools.cache(lambda: None))  # nothing was loaded yet
    ranks = sources.find([TRACE.parent]).files  # 31 MB of JSON
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not use_scanner(ranks) and use_scanner(ranks * 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert use_scanner(ranks) and not use_scanner(ranks[:0])
    monkeypatch.setattr(machine_code, "_processor", lambda: "another")
    assert not use_scanner(ranks)


def test_a_compiler_that_fails_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other reader can read everything."""
    tries = []

    def fail() -> tuple[bytes, bytes]:
        tries.append(1)
        raise RuntimeError("no such target")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_code, "_found", functools.cache(machine_code._found.__wrapped__))
    monkeypatch.setattr(machine_code, "_compiled", fail)
    for _ in range(2):
        assert len(reader.read(TRACE, fast=True).device)
    assert len(tries) == 1


def test_damaged_code_is_made_again(cache: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(cache, tmp_path / "cache")
    file = kept_in(copy)
    file.write_bytes(file.read_bytes()[:1000])
    done = count_with(copy)
    assert (done.stdout, done.stderr, done.returncode) == (COMPILED, "", 0)
    assert count_with(copy).stdout in (KEPT, KEPT_AS_OBJECT)


@needs_linker
def test_a_folder_that_others_may_write_to_is_not_used(cache: Path, tmp_path: Path) -> None:
    """The code in it is a valid one that counts 42 lines in every text."""
    shutil.copytree(cache, tmp_path, dirs_exist_ok=True)
    file = kept_in(tmp_path)
    code = foreign_code()
    file.write_bytes(code + hashlib.blake2b(code, digest_size=32).digest())
    file.parent.chmod(0o777)
    assert count_with(tmp_path).stdout == COMPILED
    file.parent.chmod(0o700)
    assert count_with(tmp_path).stdout == "42\n"  # otherwise this test would show nothing


def foreign_code() -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    functions = "".join(
        f"define i32 @rankscope_{name}(ptr %value, ptr %error) {{\n store i64 42, ptr %value\n ret i32 0\n}}\n"
        for name in ("index", "scan", "count_lines", "rehash")
    )
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    code = machine_code._linked(machine.emit_object(llvm.parse_assembly(functions)))
    assert code is not None
    return code
