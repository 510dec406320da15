"""Named submodules as ranges, by hooks: forward and backward of `profile.modules`, for torch.profiler and NVTX alike.

In the plain pass there are none, so that it stays undisturbed. The range of a backward pass begins when the gradients
of a module's outputs are there and ends when those of its inputs are; a module whose inputs need none (the first one)
has a backward range of no length.
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
    """Hooks the modules that match; `memory` is what each one's forward pass left allocated on the device (bytes)."""

    def __init__(
        self, patterns: list[str], module: nn.Module, *, annotate: bool, nvtx: Emitter | None, cuda: bool
    ) -> None:
        self._annotate = annotate
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
        for name, part in module.named_modules():
            if name and any(matches(name, pattern) for pattern in patterns):
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
    """Return whether a module's name fits a pattern, part by part: `blocks.*` is each block, not what is inside it."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
