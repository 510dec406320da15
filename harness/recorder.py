"""`Recorder`: four lines in anybody's training loop, which cost nothing unless rankscope has started the script.

    recorder = Recorder()
    for inputs, targets in recorder.loader(loader):
        with recorder.forward:
            loss = model(inputs, targets)
        ...
        recorder.step()

Nothing here imports torch before it is needed.
"""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from rankscope.harness.script import ScriptJob

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


class Recorder:
    """Marks the steps of a training loop and what they are made of.

    `data_wait`, `h2d`, `forward`, `backward` and `optimizer` are context managers that may be entered again and again,
    but not inside one another. Where rankscope did not start the script every call returns at once.
    """

    def __init__(self) -> None:
        self._job = _job()
        if self._job is not None:
            self._job.recorder = True
        made = {name: NOTHING if self._job is None else _Range(name, self._job) for name in _NAMES}
        self.data_wait = made["data_wait"]
        self.h2d = made["h2d"]
        self.forward = made["forward"]
        self.backward = made["backward"]
        self.optimizer = made["optimizer"]

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._job is not None and not self._job.done

    def loader(self, loader: Iterable[T]) -> Iterable[T]:
        """Return `loader` with the waits for its batches as `data_wait`; its attributes and length stay those of it."""
        return loader if self._job is None else Loader(loader, self._job)

    def step(self) -> None:
        """End a step. After the last that is recorded the script ends as by `sys.exit(0)`, unless `run_on` is set."""
        if self._job is not None:
            self._job.mark("recorder")

    def close(self) -> None:
        """Nothing more is marked; what is recorded is written when the script ends."""


_NAMES = ("data_wait", "h2d", "forward", "backward", "optimizer")


def _job() -> "ScriptJob | None":
    """Return the recorded job of this process; only one that rankscope started has the module loaded."""
    import sys

    module = sys.modules.get("rankscope.harness.script")
    return None if module is None else module.current()


class _Range(Nothing):
    """A range of a recorded step; the first one, too, begins the recording."""

    def __init__(self, name: str, job: "ScriptJob") -> None:
        self._name = name
        self._job = job
        self._range: Any = None

    def __enter__(self) -> None:
        self._job.begin()
        self._job.marks.give_way()
        if self._job.ranges is not None:
            self._range = self._job.ranges.by_name[self._name]
            self._range.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._range is not None:
            self._range.__exit__(kind, error, traceback)
            self._range = None


class Loader(Generic[T]):
    """An iterable whose batches are waited for in `data_wait`."""

    def __init__(self, loader: Iterable[T], job: "ScriptJob") -> None:
        self._loader = loader
        self._job = job
        self._wait = _Range("data_wait", job)

    def __iter__(self) -> Iterator[T]:
        with self._wait:
            batches = iter(self._loader)
        first = True
        while True:
            seen = self._job.batches
            with self._wait:
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            self._job.loaded(batch, first=first, counted=self._job.batches > seen)
            first = False
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
