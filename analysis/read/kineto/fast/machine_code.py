"""The scanner's kernels as machine code for this processor: compiled by numba once, kept, and loaded without numba.

Importing numba and reading its own cache takes 0.35 CPU s and 120 MB, which is more than reading a small trace needs.
So the code is kept: as a shared library if there is a linker, otherwise as an object file, which LLVM (llvmlite) loads.
Loading LLVM takes 0.07 CPU s, loading a library takes nothing.
"""

import ctypes
import functools
import hashlib
import itertools
import platform
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.conf.files import read_bytes, replacing
from rankscope.conf.user_cache import is_private, user_folder

_CHECKSUM_BYTES = 32  # at the end of the file, where it is no part of a library
_LIBRARY, _OBJECT = ".so", ".o"
_LINKERS = (("ld",), ("ld.lld",), ("cc", "-nostdlib"))
_LINKING_S = 20
_KNOWN_MACHINES = ("x86_64", "aarch64")
_CPUINFO = Path("/proc/cpuinfo")
_OF_PROCESSOR = ("vendor", "model", "cpu family", "stepping", "flags", "Features", "CPU ")  # how its lines begin
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
        paths = _paths()
        for path in paths:
            kept = loaded(path)
            if kept is not None:
                return kept
        code, independent = _compiled()
        if paths:
            _keep(code, _linked(independent), *paths)
        return _functions(code)
    except Exception as error:  # a boundary: other versions of numba and LLVM fail in ways of their own
        return error


def are_kept() -> bool:
    """Return whether the kernels are loaded, or were compiled before for this processor. Then they cost little."""
    if _found.cache_info().currsize:
        return True
    try:
        return any(path.exists() for path in _paths())
    except Exception:  # the same boundary
        return False


def _folder() -> Path:
    return user_folder() / "scanner"


def _paths() -> list[Path]:
    """Return the files of the kept code, existing or not; none if others could write to them: their code is run."""
    folder = _folder()
    if not is_private(folder):
        return []
    return [folder / f"{_sources()}-{_processor()}{suffix}" for suffix in (_LIBRARY, _OBJECT)]


@functools.cache
def _sources() -> str:
    """Return a digest of all that decides what the kernels do."""
    sources = sorted(_HERE.glob("*.py"))
    return hashlib.blake2b(b"".join(path.read_bytes() for path in sources), digest_size=8).hexdigest()


def _processor() -> str:
    """Return a digest of the processor and its features, which decide what code is right and fast."""
    what = _read_processor()
    if not what:
        import llvmlite.binding as llvm

        what = [llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    return hashlib.blake2b(repr(what).encode(), digest_size=8).hexdigest()


def _read_processor() -> list[str]:
    """Return what the system says of the processor; nothing if we do not know its words for it, or it says nothing."""
    if platform.machine() not in _KNOWN_MACHINES:
        return []
    try:
        with _CPUINFO.open() as file:  # all cores of a host are alike, and the text of many takes long
            lines = list(itertools.takewhile(str.strip, file))
    except OSError:
        return []
    return [platform.machine(), *(line for line in lines if line.startswith(_OF_PROCESSOR))]


def loaded(path: Path) -> Kernels | None:
    """Return the kept functions; None if there are none, or the file is damaged."""
    try:
        kept = read_bytes(path)
    except (OSError, ValueError):
        return None
    code = kept[:-_CHECKSUM_BYTES]
    if kept[-_CHECKSUM_BYTES:] != _checksum(code):
        return None
    if path.suffix != _LIBRARY:
        return _functions(code)
    try:
        return _of_library(path)
    except (OSError, AttributeError):  # no program may run from this folder: the object file serves
        return None


def _checksum(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=_CHECKSUM_BYTES).digest()


def _keep(code: bytes, library: bytes | None, library_path: Path, code_path: Path) -> None:
    """Keep the library if it can be loaded from its place, otherwise the object file."""
    try:
        if library is not None:
            _write(library_path, library)
            if loaded(library_path) is not None:
                return
            library_path.unlink()
        _write(code_path, code)
    except OSError:  # a full disk: the next process compiles again
        return


def _write(path: Path, code: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(code + _checksum(code))


def _machine(**how: Any) -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, **how)


_IN_PLACE: dict[str, Any] = {"codemodel": "jitdefault", "jit": True}  # code that LLVM loads itself


def _compiled() -> tuple[bytes, bytes]:
    """Compile the kernels; returns object files with a function for each: one that LLVM loads, and one to be linked."""
    import llvmlite.binding as llvm

    from rankscope.analysis.read.kineto.fast.index import count_lines, index
    from rankscope.analysis.read.kineto.fast.rows import scan
    from rankscope.analysis.read.kineto.fast.symbols import rehash

    program = llvm.parse_assembly("")
    for name, kernel in Kernels(index, scan, count_lines, rehash)._asdict().items():
        program.link_in(_module(_PREFIX + name, kernel))
    independent: bytes = _machine(reloc="pic", codemodel="small").emit_object(program.clone())
    code: bytes = _machine(**_IN_PLACE).emit_object(program)
    return code, independent


def _linked(code: bytes) -> bytes | None:
    """Return a shared library of an object file; None if there is no linker for it."""
    try:
        with tempfile.TemporaryDirectory(prefix="rankscope-") as folder:
            source, library = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
            source.write_bytes(code)
            for linker in _LINKERS:
                command = [*linker, "-shared", "-z", "noexecstack", "-o", str(library), str(source)]
                with suppress(OSError, subprocess.SubprocessError):
                    subprocess.run(command, capture_output=True, check=True, timeout=_LINKING_S)
                    return library.read_bytes()
    except OSError:  # no room for temporary files
        return None
    return None


def _of_library(path: Path) -> Kernels:
    library = ctypes.CDLL(str(path))
    addresses = {name: ctypes.cast(getattr(library, _PREFIX + name), ctypes.c_void_p).value for name in _ARGUMENTS}
    return Kernels(**{name: _function(address, _ARGUMENTS[name], library) for name, address in addresses.items()})


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

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(**_IN_PLACE))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    addresses = {name: engine.get_function_address(_PREFIX + name) for name in _ARGUMENTS}
    return Kernels(**{name: _function(address, _ARGUMENTS[name], engine) for name, address in addresses.items()})


def _function(address: Any, arguments: int, owner: Any) -> Kernel:
    """Return a kernel as a Python function; `owner` has the memory of its code.

    numba's functions return a status, and take the addresses of their value and of an exception before the arguments.
    """
    native = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * arguments)(address)

    def call(*values: int) -> int:
        value, exception = ctypes.c_int64(), ctypes.c_void_p()
        status = native(ctypes.byref(value), ctypes.byref(exception), *values)
        assert status == 0, f"a kernel ended with status {status}"
        return value.value

    call.owner = owner  # type: ignore[attr-defined]
    return call
