"""Replaces a script's own torch.profiler by one that records nothing and whose `step()` marks the steps.

Only one profiler can record in a process, and the plain pass must have none. So the script's profiler is idle while
rankscope records, and writes nothing.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.autograd.profiler_util import EventList
from torch.profiler import profile


class IdleProfile(profile):
    """torch.profiler.profile without recording; calls `started` and `stepped` instead."""

    started: ClassVar[Callable[[bool], None]]
    stepped: ClassVar[Callable[[], None]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._scheduled = kwargs.get("schedule") is not None or (len(args) > 1 and args[1] is not None)
        super().__init__()

    def start(self) -> None:
        """Record nothing, and report whether the script set a schedule."""
        type(self).started(self._scheduled)

    def stop(self) -> None: ...

    def step(self) -> None:
        self.step_num += 1
        type(self).stepped()

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        return EventList([])

    def events(self) -> Any:
        return EventList([])

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is nothing to write, and our own trace must not get the script's metadata."""


for _name in (
    "export_chrome_trace", "export_stacks", "export_memory_timeline", "add_metadata", "add_metadata_json",
    "preset_metadata_json", "toggle_collection_dynamic",
):  # fmt: skip
    setattr(IdleProfile, _name, IdleProfile._nothing)


def install(started: Callable[[bool], None], stepped: Callable[[], None]) -> None:
    """Put the replacement where scripts find torch.profiler."""
    IdleProfile.started, IdleProfile.stepped = staticmethod(started), staticmethod(stepped)
    torch.profiler.profile = torch.profiler.profiler.profile = IdleProfile  # type: ignore[misc]
