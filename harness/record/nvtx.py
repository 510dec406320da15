"""NVTX ranges for Nsight Systems: from torch if it is built for CUDA, otherwise from the package nvtx."""

import os
import time
from typing import Any, Protocol

import torch

from rankscope.conf.contract import DOCTOR_RANGE


def under_nsys() -> bool:
    """Whether Nsight Systems started this process."""
    return "NSYS_PROFILING_SESSION_ID" in os.environ


class Emitter(Protocol):
    """Opens and closes ranges of the default domain."""

    def push(self, name: str) -> None:
        """Open a range on this thread."""

    def pop(self) -> None:
        """Close the last range that `push` opened."""

    def start(self, name: str) -> Any:
        """Open a range that need not nest and that any thread may close; returns the handle for `end`."""

    def end(self, opened: Any) -> None:
        """Close a range opened by `start`."""


class TorchEmitter:
    """torch's NVTX functions, which every version of Nsight Systems records."""

    def __init__(self) -> None:
        self.push = torch.cuda.nvtx.range_push
        self.pop = torch.cuda.nvtx.range_pop
        self.start = torch.cuda.nvtx.range_start
        self.end = torch.cuda.nvtx.range_end


class PackageEmitter:
    """The package nvtx, because a CPU build of torch has no NVTX functions."""

    def __init__(self) -> None:
        import nvtx  # only needed here: a GPU needs no package

        self._nvtx: Any = nvtx
        if type(nvtx.get_domain("rankscope")).__name__ == "DummyDomain":
            raise RuntimeError(
                "the installed package nvtx records nothing under this Nsight Systems; pip install 'nvtx<0.2.12'"
            )

    def push(self, name: str) -> None:
        """Open a range on this thread."""
        self._nvtx.push_range(name)

    def pop(self) -> None:
        """Close the last range that `push` opened."""
        self._nvtx.pop_range()

    def start(self, name: str) -> Any:
        """Open a range that need not nest and that any thread may close; returns the handle for `end`."""
        return self._nvtx.start_range(name)

    def end(self, opened: Any) -> None:
        """Close a range opened by `start`."""
        self._nvtx.end_range(opened)


def main() -> None:
    """Open one range as a rank does; `rankscope doctor` checks whether it arrives in a report."""
    emitter: Emitter = TorchEmitter() if torch.cuda.is_available() else PackageEmitter()
    emitter.push(DOCTOR_RANGE)
    time.sleep(0.2)  # otherwise the program can end before nsys is attached
    emitter.pop()


if __name__ == "__main__":
    main()
