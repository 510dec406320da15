"""Runs a script as the interpreter itself would: as `__main__`, with its own `__file__`, `sys.argv` and `sys.path`.

`runpy.run_path` would take the module away when the script has ended. But exit handlers, pickling and the children of
`multiprocessing` look for `sys.modules["__main__"]` until the interpreter ends.
"""

import importlib.machinery
import io
import os
import runpy
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_kept: list[ModuleType] = []  # the module that started us: its functions still run after the script


def execute(script: str, arguments: list[str]) -> None:
    """Run a file as `python FILE` would, a folder with a `__main__.py` likewise, or a module as `python -m NAME`."""
    sys.argv = [script, *arguments]
    path = Path(script)
    if not sys.flags.safe_path and sys.path:
        del sys.path[0]  # the working folder, from `python -m` with which this process was started
    module = _become_main()
    if path.is_file():
        absolute = os.path.abspath(script)
        _put_first(str(path.resolve().parent))
        module.__file__ = absolute
        module.__dict__["__cached__"] = None
        module.__loader__ = importlib.machinery.SourceFileLoader("__main__", absolute)
        exec(_code_of(absolute), module.__dict__)
    elif path.is_dir():
        _put_first(script)
        _run_as_main("__main__", alter_argv=False)
    else:
        _put_first(os.getcwd())
        _run_as_main(script, alter_argv=True)


def _become_main() -> ModuleType:
    _kept.append(sys.modules["__main__"])
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = sys.modules["builtins"]
    module.__package__ = None
    if sys.version_info < (3, 14):  # the interpreter's own __main__ has it
        module.__annotations__ = {}
    sys.modules["__main__"] = module
    return module


def _put_first(folder: str) -> None:
    """Put the script's folder first, where Python itself would have put it."""
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, folder)


def _code_of(path: str) -> CodeType:
    with io.open_code(path) as file:
        source = file.read()
    return compile(source, path, "exec", dont_inherit=True)


def _run_as_main(name: str, *, alter_argv: bool) -> None:
    run: Any = runpy._run_module_as_main  # type: ignore[attr-defined]  # what `python -m` calls
    run(name, alter_argv)
