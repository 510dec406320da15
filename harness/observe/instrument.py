"""The calls in a training loop: ranges, batches of the loader, `step()`. They do nothing without an observer.

`Recorder` and `Monitor` are instruments. This module does not import torch.
"""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rankscope.conf.contract import RANGES, RangeName

if TYPE_CHECKING:
    from rankscope.harness.observe.observer import Observer

T = TypeVar("T")


class Marker(Protocol):
    """Receives the steps of a loop: a `Recorder` or a `Monitor`."""

    def step(self) -> None:
        """A step ends."""

    def close(self) -> None:
        """The loop is over."""


class Nothing:
    """A range without an observer."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


NOTHING = Nothing()


class Instrument:
    """Marks the parts of the steps of a training loop for an `Observer`; without one every call returns immediately.

    `data_wait`, `h2d`, `forward`, `backward` and `optimizer` are context managers that may be entered any number of
    times, but not inside each other.
    """

    def __init__(self, observer: "Observer | None") -> None:
        self._observer = observer
        made = {name: NOTHING if observer is None else ObservedRange(name, observer) for name in RANGES}
        self.data_wait = made["data_wait"]
        self.h2d = made["h2d"]
        self.forward = made["forward"]
        self.backward = made["backward"]
        self.optimizer = made["optimizer"]

    def loader(self, loader: Iterable[T]) -> Iterable[T]:
        """Wrap `loader` so that waits for batches are `data_wait`; attributes and len() are forwarded to `loader`."""
        return loader if self._observer is None else Loader(loader, self._observer)

    def step(self) -> None:
        """End a step."""
        if self._observer is not None:
            self._observer.mark("recorder")

    def close(self) -> None:
        """End the marking; nothing to do for a `Recorder`."""


class ObservedRange(Nothing):
    """A range of a step. The first range also begins the observation."""

    def __init__(self, name: RangeName, observer: "Observer") -> None:
        self._name = name
        self._observer = observer
        self._range: Any = None

    def __enter__(self) -> None:
        self._observer.begin()
        self._observer.marks.give_way(self._name)
        if self._observer.ranges is not None:
            self._range = self._observer.ranges.by_name[self._name]
            self._range.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._range is not None:
            self._range.__exit__(kind, error, traceback)
            self._range = None


class Loader(Generic[T]):
    """An iterable that waits for its batches in `data_wait`."""

    def __init__(self, loader: Iterable[T], observer: "Observer") -> None:
        self._loader = loader
        self._observer = observer
        self._wait = ObservedRange("data_wait", observer)

    def __iter__(self) -> Iterator[T]:
        with self._wait:
            batches = iter(self._loader)
        first = True
        while True:
            seen = self._observer.batches
            with self._wait:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            self._observer.loaded(batch, first=first, counted=self._observer.batches > seen)
            first = False
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
