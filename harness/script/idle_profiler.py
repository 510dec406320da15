"""A stand-in for the torch.profiler that a script brings along: it records nothing, and its `step()` marks the steps.

Only one profiler can record in a process, and the plain pass must have none. So the script's own is left idle while
rankscope records; what it would have written is not.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.autograd.profiler_util import EventList
from torch.profiler import profile


class IdleProfile(profile):
    """torch.profiler.profile without its recording; `started` and `stepped` are told of its life."""

    started: ClassVar[Callable[[bool], None]]
    stepped: ClassVar[Callable[[], None]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._scheduled = kwargs.get("schedule") is not None or (len(args) > 1 and args[1] is not None)
        super().__init__()

    def start(self) -> None:
        """Record nothing."""
        type(self).started(self._scheduled)

    def stop(self) -> None:
        """Nothing was recorded."""

    def step(self) -> None:
        """A step ends."""
        self.step_num += 1
        type(self).stepped()

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        """Return no events."""
        return EventList([])

    def events(self) -> Any:
        """Return no events."""
        return EventList([])

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is nothing to write, and the metadata of our own trace are ours."""


for _name in (
    "export_chrome_trace", "export_stacks", "export_memory_timeline", "add_metadata", "add_metadata_json",
    "preset_metadata_json", "toggle_collection_dynamic",
):  # fmt: skip
    setattr(IdleProfile, _name, IdleProfile._nothing)


def install(started: Callable[[bool], None], stepped: Callable[[], None]) -> None:
    """Put the stand-in where scripts find torch.profiler."""
    IdleProfile.started, IdleProfile.stepped = staticmethod(started), staticmethod(stepped)
    torch.profiler.profile = torch.profiler.profiler.profile = IdleProfile  # type: ignore[misc]
