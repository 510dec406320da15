"""The calls that a training loop makes: ranges, the loader's batches, `step()`; nothing where nobody listens.

`Recorder` and `Monitor` are instruments. Nothing here imports torch.
"""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rankscope.conf.contract import RANGES, RangeName

if TYPE_CHECKING:
    from rankscope.harness.observe.observer import Observer

T = TypeVar("T")


class Marker(Protocol):
    """What is told of the steps of a loop: a `Recorder`, or a `Monitor`."""

    def step(self) -> None:
        """A step ends."""

    def close(self) -> None:
        """The loop is over."""


class Nothing:
    """A range that nobody looks at."""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


NOTHING = Nothing()


class Instrument:
    """Marks what a training loop's steps are made of, for an `Observer`; without one every call returns at once.

    `data_wait`, `h2d`, `forward`, `backward` and `optimizer` are context managers that may be entered again and again,
    but not inside one another.
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
        """Return `loader` with the waits for its batches as `data_wait`; its attributes and length stay those of it."""
        return loader if self._observer is None else Loader(loader, self._observer)

    def step(self) -> None:
        """End a step."""
        if self._observer is not None:
            self._observer.mark("recorder")

    def close(self) -> None:
        """Say that nothing more is marked."""


class ObservedRange(Nothing):
    """A range of a step; the first one, too, begins the observation."""

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
    """An iterable whose batches are waited for in `data_wait`."""

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
