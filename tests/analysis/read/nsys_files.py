"""Builds small exports with the tables and columns of Nsight Systems; every number in them is chosen by the test."""

import sqlite3
import struct
from pathlib import Path

PID = 4000
ALLREDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GEMM = "void gemm<float>(float *)"
STEP_NS, GEMM_NS = 1_000_000, 600_000
BASE = 1_800_000_000_000_000_000


class ExportFile:
    """An export of one or more processes; `add_rank` writes the steps of one."""

    def __init__(self, path: Path, *, base: int = BASE, normalised: bool = False, schema: str = "3.20.3") -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._strings: dict[str, int] = {}
        self._shift = base if normalised else 0
        self._table("StringIds", "id INTEGER PRIMARY KEY, value TEXT")
        metadata = "EXPORT_META_DATA" if schema == "3.0.0" else "META_DATA_EXPORT"
        self._table(metadata, "name TEXT, value TEXT")
        self._table("TARGET_INFO_SESSION_START_TIME", "utcEpochNs INT")
        self._insert(metadata, "EXPORT_SCHEMA_VERSION", schema)
        if schema != "3.0.0":
            self._insert(metadata, "EXPORT_PARAM_TIME_NORMALIZE", str(normalised).lower())
            self._insert(metadata, "EXPORT_CONFIG_TIME_SHIFT", str(self._shift))
        self._insert("TARGET_INFO_SESSION_START_TIME", base)

    def add_rank(
        self,
        rank: int = 0,
        *,
        steps: int = 4,
        step_name: str = "step_{}",
        comm_start: int = 500_000,
        comm_end: int = 800_000,
        cuda: bool = True,
        nvtx: bool = True,
        payload: int | None = None,
        function: str = "ncclAllReduce",
        kernel: str = ALLREDUCE,
    ) -> None:
        """Write `steps` steps of 1 ms: a GEMM of 0.6 ms from 0.1 ms on, a collective as given, and 4 KB copied."""
        pid = PID + rank
        process = 1 << 48 | pid << 24
        main, autograd = process | pid, process | pid + 7
        if cuda:
            self._cuda_tables()
        if nvtx:
            self._nvtx_tables(payload is not None)
            self._nvtx(75, -5_000_000, None, process | pid, domain=1, text="NCCL")
        correlation = 0
        for step in range(steps):
            at = step * STEP_NS + self._shift
            if nvtx:
                self._nvtx(59, at, at + STEP_NS - 1000, main, text=step_name.format(step))
                self._nvtx(59, at + 1000, at + 50_000, main, name="data_wait")
                self._nvtx(59, at + 60_000, at + 99_000, autograd, domain=1, name=function, payload=payload)
            if not cuda:
                continue
            for name, thread, launch, start, end, stream in (
                (GEMM, main, 55_000, 100_000, 100_000 + GEMM_NS, 7),
                (kernel, autograd, 70_000, comm_start, comm_end, 20),
            ):
                correlation += 1
                words = self._word(name), self._word(name.partition("(")[0].split()[-1])
                call = self._word("cudaLaunchKernelExC_v11060")
                self._insert("CUPTI_ACTIVITY_KIND_RUNTIME", at + launch, at + launch + 9000, thread, correlation, call)
                times = at + start, at + end
                self._insert("CUPTI_ACTIVITY_KIND_KERNEL", *times, 0, 1, stream, correlation, process, *words)
            correlation += 1
            call = self._word("cudaMemcpyAsync_v3020")
            self._insert("CUPTI_ACTIVITY_KIND_RUNTIME", at + 51_000, at + 53_000, main, correlation, call)
            times = at + 60_000, at + 70_000
            self._insert("CUPTI_ACTIVITY_KIND_MEMCPY", *times, 0, 1, 7, correlation, process, 4096, 1)

    def drop_column(self, table: str, column: str) -> None:
        self._database.execute(f"ALTER TABLE {table} DROP COLUMN {column}")

    def close(self) -> None:
        self._database.close()

    def _cuda_tables(self) -> None:
        where = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT"
        self._table("CUPTI_ACTIVITY_KIND_KERNEL", f"{where}, demangledName INT, shortName INT")
        self._table("CUPTI_ACTIVITY_KIND_MEMCPY", f"{where}, bytes INT, copyKind INT")
        self._table("CUPTI_ACTIVITY_KIND_RUNTIME", "start INT, end INT, globalTid INT, correlationId INT, nameId INT")

    def _nvtx_tables(self, payload: bool) -> None:
        columns = "start INT, end INT, eventType INT, globalTid INT, domainId INT, text TEXT, textId INT"
        self._table("NVTX_EVENTS", columns + (", binaryData BLOB" if payload else ""))
        if payload:
            self._table("NVTX_PAYLOAD_SCHEMA_ENTRIES", "domainId INT, schemaId INT, idx INT, name TEXT, offset INT")
            self._insert("NVTX_PAYLOAD_SCHEMA_ENTRIES", 1, 9, 0, "NCCL communicator ID", None)
            self._insert("NVTX_PAYLOAD_SCHEMA_ENTRIES", 1, 9, 1, "Message size [bytes]", 8)

    def _nvtx(
        self,
        kind: int,
        start: int,
        end: int | None,
        thread: int,
        *,
        domain: int = 0,
        text: str | None = None,
        name: str | None = None,
        payload: int | None = None,
    ) -> None:
        row: list[object] = [start, end, kind, thread, domain, text, None if name is None else self._word(name)]
        if self._has_payload:
            body = None if payload is None else struct.pack("<4Q3Q", 1, 9, 24, 32, 0xC0FFEE, payload, 0)
            row.append(body)
        self._insert("NVTX_EVENTS", *row)

    @property
    def _has_payload(self) -> bool:
        return any(row[1] == "binaryData" for row in self._database.execute("PRAGMA table_info(NVTX_EVENTS)"))

    def _word(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self._insert("StringIds", self._strings[text], text)
        return self._strings[text]

    def _table(self, name: str, columns: str) -> None:
        self._database.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")

    def _insert(self, table: str, *values: object) -> None:
        self._database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)


def write_job(folder: Path, ranks: int = 2, **options: object) -> list[Path]:
    """Write one export a rank; each session begins 0.25 ms after the one before, so its times are that much earlier."""
    files = []
    for rank in range(ranks):
        path = folder / f"rank{rank}.sqlite"
        file = ExportFile(path)
        file.add_rank(rank, **options)  # type: ignore[arg-type]
        file.close()
        files.append(path)
    return files
