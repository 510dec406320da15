"""Hears the calls of a script's model: the last means to find steps, if nothing else of torch is used.

A hook on all modules makes every call of a submodule slower. So it is only there until a module was called twice from
the script itself; from then on only that module has a hook. The hook is removed as soon as steps are found otherwise.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModelCalls:
    """Calls `called` before each call of the model after the first, from `install` to `remove`."""

    def __init__(self, called: Callable[[], None]) -> None:
        self._called = called
        self._thread = threading.get_ident()
        self._depth = 0
        self._once: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._handles: list[Any] = []
        self.any = False  # whether a module was called at all

    def install(self) -> None:
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._exit, always_call=True),
        ]

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _enter(self, module: nn.Module, _: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self.any = True
        self._depth += 1
        if self._depth > 1:
            return
        if module in self._once:
            self.remove()
            self._handles = [module.register_forward_pre_hook(lambda *_: self._call())]
            self._depth = 0
            self._called()
        else:
            self._once.add(module)

    def _exit(self, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._depth = max(0, self._depth - 1)

    def _call(self) -> None:
        if threading.get_ident() == self._thread:
            self._called()
