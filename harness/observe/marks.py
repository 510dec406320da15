"""Finds steps and ranges of an unmodified loop from torch's own calls: loader, backward, optimizer, profiler.

`Marks` wraps a few of torch's functions and calls them unchanged. It draws no random number, creates no tensor and
waits for nothing. `forward` cannot be seen: it is the time from a batch to the backward pass (or to the next batch),
copies included. `Marks` does nothing on threads other than the one that created it, or while a CUDA graph is captured.
"""

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data import dataloader as loaders

from rankscope.conf.contract import RangeName
from rankscope.harness.observe.principal import Principal
from rankscope.harness.observe.samples import samples_from
from rankscope.harness.record.ranges import Ranges

Source = Literal["recorder", "profiler", "optimizer", "loader", "backward", "model"]


class Target(Protocol):
    """The receiver of the marks; `ranges` is null while nothing is timed."""

    @property
    def ranges(self) -> Ranges | None:
        """The ranges to open."""

    def mark(self, source: Source) -> None:
        """A step ends here, if steps are those of `source`."""

    def changed(self, source: Source) -> None:
        """The loop goes by another optimizer or loader from here on."""

    def batch(self, samples: int | None, *, first: bool) -> None:
        """A loader gave a batch; `first` of its epoch."""


class Marks:
    """Reports batches, ranges and ends of steps to `target`, from `install` to `remove`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._thread = threading.get_ident()
        self._undo: list[Callable[[], None]] = []
        self._open: RangeName | None = None  # the range that `Marks` has opened
        self._depth: Counter[RangeName] = Counter()  # nested calls
        self._marked_in_backward = False
        self._ended = False  # the main loader has just raised StopIteration
        self._main: dict[str, Principal] = {"optimizer": Principal(), "loader": Principal()}
        self._loaders: weakref.WeakKeyDictionary[Any, Callable[[], Any]] = weakref.WeakKeyDictionary()  # of iterators
        self.elsewhere = False  # whether a loader or a backward pass was used on another thread
        self.loaders: set[int] = set()  # those that gave batches
        self.optimizers: Counter[str] = Counter()  # steps by kind and place of the optimizer
        self.skipped = 0  # steps that a GradScaler skipped
        self.made_optimizers = 0
        self.guesses = True

    def install(self) -> None:
        self._replace(DataLoader, "__iter__", self._around_start)
        self._replace(loaders._BaseDataLoaderIter, "__next__", self._around_next)
        self._replace(torch.autograd, "backward", self._around_backward)
        self._replace(torch.amp.GradScaler, "step", self._around_scaled_step)
        self._replace(Optimizer, "__init__", self._around_making)
        for handle in (
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._after_step(optimizer)),
        ):
            self._undo.append(handle.remove)

    def forget_main(self) -> None:
        """Let the next optimizer and loader be those that the loop goes by."""
        for kind in self._main:
            self._main[kind] = Principal()

    def when_compiled(self, act: Callable[[], None]) -> None:
        """Call `act` before the script asks torch to compile anything."""

        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            act()
            return original(*args, **kwargs)

        self._replace(torch, "compile", around)
        self._replace(torch.nn.Module, "compile", around)

    def remove(self) -> None:
        """Stop listening and restore torch's functions."""
        self.close()
        while self._undo:
            self._undo.pop()()

    def give_way(self, name: RangeName) -> None:
        """End the guessed `forward`, because the script opens `name` itself. Its own `forward` ends the guessing."""
        self.guesses = self.guesses and name != "forward"
        if self._open == "forward":
            self.close()

    def guess_forward(self) -> None:
        """Begin `forward` after a batch, unless another range is open."""
        if self._open is None and self.guesses and self._here:
            self._switch("forward")

    def close(self) -> None:
        if self._open is not None and self._target.ranges is not None:
            self._target.ranges.by_name[self._open].__exit__(None, None, None)
        self._open = None

    def _replace(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = vars(owner)[name]

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, wrapper)
        self._undo.append(lambda: setattr(owner, name, original))

    # --- ranges --------------------------------------------------------------------------------------------------

    @property
    def _here(self) -> bool:
        return threading.get_ident() == self._thread and not (
            torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        )

    def _enter(self, name: RangeName) -> None:
        if not self._here:
            self.elsewhere = self.elsewhere or threading.get_ident() != self._thread
            return
        self._depth[name] += 1
        inside_closure = name == "backward" and self._depth["optimizer"] == 1
        if self._depth[name] == 1 and (self._open in (None, "forward") or inside_closure):
            self._switch(name)

    def _exit(self, name: RangeName) -> bool:
        """Close a range; returns whether this was the outermost call."""
        if not self._here:
            return False
        self._depth[name] = max(0, self._depth[name] - 1)
        if self._depth[name]:
            return False
        if self._open == name:
            self.close()
        return True

    def _switch(self, name: RangeName) -> None:
        """Close the open range and open `name`, unless the script has opened its own range."""
        self.close()
        ranges = self._target.ranges
        if ranges is not None and ranges.current is None:
            ranges.by_name[name].__enter__()
            self._open = name

    # --- what is listened to -------------------------------------------------------------------------------------

    def _around_start(self, original: Any, loader: Any) -> Any:
        self._enter("data_wait")
        try:
            iterator = original(loader)
        finally:
            self._exit("data_wait")
        if isinstance(iterator, loaders._BaseDataLoaderIter):
            # A loader that keeps its iterator would otherwise never be freed, nor its workers ended.
            keeps = getattr(loader, "_iterator", None) is iterator
            self._loaders[iterator] = weakref.ref(loader) if keeps else lambda: loader
        return iterator

    def _around_next(self, original: Any, iterator: Any) -> Any:
        known = self._loaders.get(iterator)
        loader = known() if known is not None else None
        principal, outermost, main = self._main["loader"], False, False
        if self._here and not self._depth["data_wait"]:
            main = self._asked(iterator if loader is None else loader)
        self._enter("data_wait")
        try:
            batch = original(iterator)
            self._ended = self._ended and not main
        except StopIteration:
            if main:
                self._ended = True  # the step has ended already
                principal.release(iterator if loader is None else loader)
            raise
        finally:
            outermost = self._exit("data_wait")
        if outermost:
            self.loaders.add(id(loader))
            number = iterator._num_yielded
            self._target.batch(samples_from(batch, loader, number), first=number == 1)
            self.guess_forward()
        return batch

    def _asked(self, loader: Any) -> bool:
        """End a step if the loop goes by this loader; returns whether it does."""
        heard = self._main["loader"].hear(loader)
        if heard == "other":
            return False
        self.close()
        if heard == "changed":
            self._target.changed("loader")
        elif not self._ended:
            self._target.mark("loader")
        return True

    def _around_backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self._enter("backward")
        try:
            return original(*args, **kwargs)
        finally:
            if self._exit("backward"):
                if self._depth["optimizer"]:
                    self._switch("optimizer")  # this was its closure
                elif self._marked_in_backward:
                    self._marked_in_backward = False
                    self._target.mark("optimizer")
                else:
                    self._target.mark("backward")

    def _around_making(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.made_optimizers += 1
        return original(*args, **kwargs)

    def _around_scaled_step(self, original: Any, scaler: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Count a step that the scaler skips because gradients overflowed: for the loop it is a step."""
        before = self._steps_of(optimizer)
        result = original(scaler, optimizer, *args, **kwargs)
        if self._here and self._steps_of(optimizer) == before:
            self.skipped += 1
            self._stepped(optimizer)
        return result

    def _before_step(self, _: Optimizer, args: Any, kwargs: Any) -> None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._enter("optimizer")
        elif self._here:  # a closure begins with a forward pass
            self._depth["optimizer"] += 1

    def _after_step(self, optimizer: Optimizer) -> None:
        """Count a step of an optimizer, unless another optimizer made it inside its own step."""
        if threading.get_ident() != self._thread or self._depth["backward"]:
            self._exit("optimizer")
            self._stepped(optimizer)
        elif self._exit("optimizer"):
            self._stepped(optimizer)

    def _stepped(self, optimizer: Optimizer) -> None:
        self.optimizers[_name(optimizer)] += 1
        heard = self._main["optimizer"].hear(optimizer)
        if heard == "other":
            return
        if heard == "changed":
            self._target.changed("optimizer")
        elif self._depth["backward"]:
            self._marked_in_backward = True
        else:
            self.close()
            self._target.mark("optimizer")

    def _steps_of(self, optimizer: Optimizer) -> int:
        return self.optimizers[_name(optimizer)]


def _name(optimizer: Optimizer) -> str:
    return f"{type(optimizer).__name__} {id(optimizer):x}"
