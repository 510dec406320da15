"""Small Chrome traces of one rank, written event by event: times in us, one launch thread, any number of devices."""

import json
from pathlib import Path
from typing import Any

_BASE_US = 1_000_000.0
PID = 4242


class MadeTrace:
    """Collects events; `write` makes the file."""

    def __init__(self, rank: int | None = 0, world: int = 1, pid: int = PID) -> None:
        self.events: list[dict[str, Any]] = []
        self.pid = pid
        self.info = None if rank is None else {"backend": "nccl", "rank": rank, "world_size": world}
        self.extra: dict[str, Any] = {}
        self._correlation = 0

    def add(self, category: str, name: str, start: float, took: float, **args: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": self.pid, "tid": self.pid, "args": args}
        self.events.append(event | {"ts": _BASE_US + start, "dur": took})

    def step(self, number: int, start: float, took: float) -> None:
        self.add("user_annotation", f"ProfilerStep#{number}", start, took)

    def call(self, name: str, start: float, took: float = 1.0) -> int:
        """Add a runtime call and return its correlation."""
        self._correlation += 1
        self.add("cuda_runtime", name, start, took, correlation=self._correlation)
        return self._correlation

    def kernel(
        self,
        start: float,
        took: float,
        name: str = "elementwise_kernel",
        *,
        call: str | None = "cudaLaunchKernel",
        launched: float | None = None,
        correlation: int | None = None,
        device: int = 0,
        stream: int = 7,
        category: str = "kernel",
        **args: Any,
    ) -> None:
        """Add a record of the device, and the call that launched it 2 us before (or at `launched`)."""
        if call is not None:
            own = self.call(call, start - 2 if launched is None else launched)
            correlation = own if correlation is None else correlation
        args |= {"device": device, "stream": stream, "correlation": correlation or 0}
        self.add(category, name, start, took, **args)

    def write(self, path: Path) -> Path:
        document: dict[str, Any] = {"schemaVersion": 1, **self.extra, "traceEvents": self.events}
        if self.info is not None:
            document["distributedInfo"] = self.info
        path.write_text(json.dumps(document))
        return path
