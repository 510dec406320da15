"""Named submodules as ranges: hooks for forward and backward of `profile.modules`, for torch.profiler and for NVTX.

The plain pass has no such ranges, so that it stays undisturbed. A backward range begins when the gradients of the
module's outputs are complete, and ends when those of its inputs are. A module whose inputs need no gradients (the first
one) has a backward range without length.
"""

from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from rankscope.conf import ConfigError
from rankscope.conf.contract import MODULE_PREFIX
from rankscope.harness.record.nvtx import Emitter

_SHOWN = 8


class ModuleRanges:
    """Hooks matching modules; `memory` is what the forward pass of each leaves allocated on the device (bytes)."""

    def __init__(self, patterns: list[str], module: nn.Module, *, nvtx: Emitter | None, cuda: bool) -> None:
        self._annotate = False
        self._nvtx = nvtx
        self._cuda = cuda
        self._open: dict[str, list[record_function]] = {}
        self._before: dict[str, list[int]] = {}
        self.memory: dict[str, int] = {}
        names = [name for name, _ in module.named_modules() if name]
        for pattern in patterns:
            if not any(matches(name, pattern) for name in names):
                shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
                raise ConfigError(f"profile.modules={pattern}: the model has no such module; it has {shown}")
        self._chosen = [
            (name, part)
            for name, part in module.named_modules()
            if name and any(matches(name, pattern) for pattern in patterns)
        ]

    def hook(self, annotate: bool) -> None:
        """Open the ranges from now on; `annotate`: also for torch.profiler."""
        self._annotate = annotate
        for name, part in self._chosen:
            self._hook(name, part)

    def _hook(self, name: str, module: nn.Module) -> None:
        backward = f"backward of {name}"
        module.register_forward_pre_hook(lambda *_: self._enter(name, measure=True))
        module.register_forward_hook(lambda *_: self._exit(name, measure=True), always_call=True)
        module.register_full_backward_pre_hook(lambda *_: self._enter(backward))
        module.register_full_backward_hook(lambda *_: self._exit(backward))

    def _enter(self, name: str, *, measure: bool = False) -> None:
        if measure and self._cuda:
            self._before.setdefault(name, []).append(torch.cuda.memory_allocated())
        if self._nvtx is not None:
            self._nvtx.push(MODULE_PREFIX + name)
        if self._annotate:
            opened: Any = record_function(MODULE_PREFIX + name)
            opened.__enter__()
            self._open.setdefault(name, []).append(opened)

    def _exit(self, name: str, *, measure: bool = False) -> None:
        if self._annotate and self._open.get(name):
            self._open[name].pop().__exit__(None, None, None)
        if self._nvtx is not None:
            self._nvtx.pop()
        if measure and self._before.get(name):
            left = torch.cuda.memory_allocated() - self._before[name].pop()
            self.memory[name] = max(self.memory.get(name, 0), left)


def matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern part by part: `blocks.*` matches each block, but nothing inside it."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
