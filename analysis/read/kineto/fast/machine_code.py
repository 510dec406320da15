"""The scanner's kernels as machine code for this processor: compiled by numba once, kept, and loaded without numba.

Importing numba and reading its own cache takes 0.35 CPU s and 120 MB, which is more than reading a small trace needs.
So the code is kept as an object file. LLVM alone (llvmlite) loads it.
"""

import ctypes
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.conf.files import read_bytes, replacing
from rankscope.conf.user_cache import is_private, user_folder

_CHECKSUM_BYTES = 32  # at the beginning of the file
_PREFIX = "rankscope_"  # of the functions' names: C has an `index` of its own
_HERE = Path(__file__).parent

Kernel = Callable[..., int]


class Kernels(NamedTuple):
    """The compiled functions. They take addresses and numbers (int64), and return one."""

    index: Kernel
    scan: Kernel
    count_lines: Kernel
    rehash: Kernel


_ARGUMENTS = {"index": 4, "scan": 7, "count_lines": 2, "rehash": 5}  # how many each takes


def kernels() -> Kernels:
    """Return the compiled functions. Raises ImportError if numba and LLVM are missing or fail.

    They are compiled when the first large trace is read, or before worker processes start: for about 8 s, once a user.
    If the user's cache folder cannot be written or others can write to it, they are compiled for this process and the
    workers that it forks.
    """
    found = _found()
    if isinstance(found, Exception):
        raise ImportError(f"the scanner can be neither loaded nor compiled: {found}") from found
    return found


@functools.cache
def _found() -> Kernels | Exception:
    """Return the functions, or why there are none: to find that out for each file would take as long each time."""
    try:
        path = _path()
        kept = None if path is None else loaded(path)
        if kept is not None:
            return kept
        code = _compiled()
        if path is not None:
            _keep(path, code)
        return _functions(code)
    except Exception as error:  # a boundary: other versions of numba and LLVM fail in ways of their own
        return error


def are_kept() -> bool:
    """Return whether the kernels are loaded, or were compiled before for this processor. Then they cost little."""
    if _found.cache_info().currsize:
        return True
    if not any(_folder().glob(f"{_sources()}-*.o")):  # importing LLVM would be for nothing
        return False
    try:
        path = _path()
    except Exception:  # the same boundary
        return False
    return path is not None and path.exists()


def _folder() -> Path:
    return user_folder() / "scanner"


def _path() -> Path | None:
    """Return the file of the kept code, existing or not; None if others could write to it: what is in it is run."""
    folder = _folder()
    return folder / f"{_sources()}-{_processor()}.o" if is_private(folder) else None


@functools.cache
def _sources() -> str:
    """Return a digest of all that decides what the kernels do."""
    sources = sorted(_HERE.glob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in sources), digest_size=8).hexdigest()


def _processor() -> str:
    """Return a digest of what decides which code is right and fast: LLVM's version and the processor."""
    import llvmlite
    import llvmlite.binding as llvm

    what = (
        llvmlite.__version__,
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    )
    return hashlib.blake2b(repr(what).encode(), digest_size=8).hexdigest()


def loaded(path: Path) -> Kernels | None:
    """Return the kept functions; None if there are none, or the file is damaged."""
    try:
        kept = read_bytes(path)
    except (OSError, ValueError):
        return None
    code = kept[_CHECKSUM_BYTES:]
    return _functions(code) if kept[:_CHECKSUM_BYTES] == _checksum(code) else None


def _checksum(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=_CHECKSUM_BYTES).digest()


def _keep(path: Path, code: bytes) -> None:
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(_checksum(code) + code)
    except OSError:  # a full disk: the next process compiles again
        return


def _machine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, codemodel="jitdefault", jit=True
    )


def _compiled() -> bytes:
    """Compile the kernels; returns an object file with a function for each."""
    import llvmlite.binding as llvm

    from rankscope.analysis.read.kineto.fast.index import count_lines, index
    from rankscope.analysis.read.kineto.fast.rows import scan
    from rankscope.analysis.read.kineto.fast.symbols import rehash

    machine = _machine()
    program = llvm.parse_assembly("")
    for name, kernel in Kernels(index, scan, count_lines, rehash)._asdict().items():
        program.link_in(_module(_PREFIX + name, kernel))
    code: bytes = machine.emit_object(program)
    return code


def _module(name: str, kernel: Any) -> Any:
    """Return numba's LLVM module of one kernel, whose only public function gets the name `name`."""
    import llvmlite.binding as llvm

    (text,) = kernel.inspect_llvm().values()
    module = llvm.parse_assembly(text)
    missing = [each.name for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")]
    assert not missing, f"{name} calls {missing} of numba's runtime, which is not there when it runs"
    (public,) = (each for each in module.functions if not each.is_declaration and each.linkage.name == "external")
    public.name = name
    return module


def _functions(code: bytes) -> Kernels:
    """Load an object file into this process."""
    import llvmlite.binding as llvm

    machine = _machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return Kernels(**{name: _function(engine, name, count) for name, count in _ARGUMENTS.items()})


def _function(engine: Any, name: str, arguments: int) -> Kernel:
    """Return a kernel as a Python function.

    numba's functions return a status, and take the addresses of their value and of an exception before the arguments.
    """
    address = engine.get_function_address(_PREFIX + name)
    native = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * arguments)(address)

    def call(*values: int) -> int:
        value, exception = ctypes.c_int64(), ctypes.c_void_p()
        status = native(ctypes.byref(value), ctypes.byref(exception), *values)
        assert status == 0, f"{name} ended with status {status}"
        return value.value

    call.engine = engine  # type: ignore[attr-defined]  # its memory holds the code
    return call
