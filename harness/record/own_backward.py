"""Tells a step timer when a rank has computed its own gradients, before it waits for those of the other ranks.

DistributedDataParallel waits for its all-reduces in a callback that the autograd engine runs at the end of the backward
pass. The engine runs such callbacks in the order in which they were queued. So a callback that is queued when the pass
begins runs when all gradients are computed, and before the wait. A backward pass that waits for other ranks on its way,
as with FSDP, includes these waits.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def observe(computed: Callable[[], None]) -> Callable[[], None]:
    """Call `computed` in every `torch.autograd.backward` when its gradients are computed; returns what ends this."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        handle = _when_begun(args[0] if args else kwargs.get("tensors"), computed)
        try:
            return original(*args, **kwargs)
        finally:
            if handle is not None:
                handle.remove()

    def end() -> None:
        if torch.autograd.backward is backward:  # otherwise somebody has replaced it since
            torch.autograd.backward = original

    torch.autograd.backward = backward
    return end


def _when_begun(tensors: Any, computed: Callable[[], None]) -> Any:
    """Queue `computed` when the engine begins with the first of `tensors`; returns the handle of the hook, or None."""
    first = tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors
    node = first.grad_fn if isinstance(first, Tensor) else None
    if node is None or _recorded():
        return None

    def begin(_: Any) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(computed)

    return node.register_prehook(begin)


def _recorded() -> bool:
    """Whether the backward pass is compiled or captured in a CUDA graph, which would record the hook too."""
    compiled = getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "compiled_autograd_enabled", False)
    return bool(compiled) or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
