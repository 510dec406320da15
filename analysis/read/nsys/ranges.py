"""Reads the NVTX ranges of an export: their names, which of them are steps, and the payload of NCCL's own ranges.

Input: an `Export`. Output: one `Ranges` table of all processes, with the names that the rest of the analysis expects: a
step is `ProfilerStep#N`, a wait for the data loader is `data_wait`, a range of another domain is `domain:name`.
"""

import re
import struct

import msgspec
import numpy as np

from rankscope.analysis.core.collective_kinds import UNKNOWN_KIND, collective_kind
from rankscope.analysis.core.notices import Notice
from rankscope.analysis.core.step_names import RANGES
from rankscope.analysis.core.table import UNKNOWN, Column
from rankscope.analysis.read.decode import short_name
from rankscope.analysis.read.nsys.export import Export
from rankscope.conf.contract import DATA_WAIT

NCCL = "NCCL"
_EVENTS = {"NvtxPushPopRange": 59, "NvtxStartEndRange": 60, "NvtxDomainCreate": 75}
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_DATA_WAIT = re.compile(
    r"data|(?:data|batch)[ _-]?(?:wait|load(?:er|ing)?|fetch)|(?:load|next|get|fetch)[ _-]?(?:batch|data)"
)


class Ranges(msgspec.Struct, kw_only=True):
    """Push/pop and start/end ranges, one entry per range; times relative to the export's origin (ns)."""

    start: Column
    end: Column  # UNKNOWN: still open
    thread: Column  # globalTid
    names: list[str]
    is_step: Column
    is_wait: Column
    collective: list[str | None]  # for NCCL's ranges: the function called
    communicator: list[str | None]  # from the payload of NCCL's ranges, if the export holds it
    message_bytes: Column
    notices: list[Notice] = []


def read_ranges(export: Export, pattern: str | None) -> Ranges:
    """Read the ranges. `pattern` names the steps (a name or a regular expression); otherwise they are recognised."""
    codes = export.codes("ENUM_NSYS_EVENT_TYPE", _EVENTS)
    kinds = f"eventType IN ({codes['NvtxPushPopRange']}, {codes['NvtxStartEndRange']})"
    required = ("start", "end", "globalTid")
    columns = export.integers("NVTX_EVENTS", required, ("domainId", *_PAYLOADS), kinds)
    count = len(columns["start"])
    texts = _texts(export, kinds) if count else []
    domains = _domains(export, codes["NvtxDomainCreate"]) if count else {}
    process = (columns["globalTid"] >> 24).tolist()
    domain = [
        domains.get((pid, number), "") if number > 0 else ""
        for pid, number in zip(process, columns["domainId"].tolist(), strict=True)
    ]
    payload = np.full(count, UNKNOWN)
    for name in reversed(_PAYLOADS):
        payload = np.where(columns[name] != UNKNOWN, columns[name], payload)
    of_nccl = np.array([name == NCCL for name in domain], bool)
    full = [f"{where}:{text}" if where else text for where, text in zip(domain, texts, strict=True)]
    numbers, notices = _step_numbers(export, texts, full, payload, columns, of_nccl, pattern)
    is_wait = np.array([_DATA_WAIT.fullmatch(text) is not None for text in texts], bool) & (numbers == UNKNOWN)
    names = [
        f"ProfilerStep#{number}" if number != UNKNOWN else DATA_WAIT if wait else name
        for name, number, wait in zip(full, numbers.tolist(), is_wait.tolist(), strict=True)
    ]
    communicator, size = _payloads(export, kinds, of_nccl)
    return Ranges(
        start=columns["start"],
        end=columns["end"],
        thread=columns["globalTid"],
        names=names,
        is_step=numbers != UNKNOWN,
        is_wait=is_wait,
        collective=[
            text if ours and collective_kind(text) != UNKNOWN_KIND else None
            for text, ours in zip(texts, of_nccl.tolist(), strict=True)
        ],
        communicator=communicator,
        message_bytes=size,
        notices=notices,
    )


def _texts(export: Export, where: str) -> list[str]:
    """Return the name of each range: its own text, or its registered string."""
    registered = "(SELECT value FROM StringIds WHERE id = textId)" if export.has("NVTX_EVENTS", "textId") else "NULL"
    text = f"COALESCE(text, {registered}, '')" if export.has("NVTX_EVENTS", "text") else f"COALESCE({registered}, '')"
    return [
        short_name(str(value))
        for (value,) in export.each(f"SELECT {text} FROM NVTX_EVENTS WHERE {where} ORDER BY rowid")
    ]


def _domains(export: Export, event: int) -> dict[tuple[int, int], str]:
    """Return the names of the domains by (process, id), because each process numbers its domains from the start."""
    where = f"eventType = {event}"
    columns = export.integers("NVTX_EVENTS", ("globalTid", "domainId"), (), where)
    keys = zip((columns["globalTid"] >> 24).tolist(), columns["domainId"].tolist(), strict=True)
    return dict(zip(keys, _texts(export, where), strict=True))


# --- steps ---------------------------------------------------------------------------------------------------


def _step_numbers(
    export: Export,
    texts: list[str],
    full: list[str],
    payload: Column,
    columns: dict[str, Column],
    of_nccl: Column,
    pattern: str | None,
) -> tuple[Column, list[Notice]]:
    """Return the step number of each range, `UNKNOWN` if it is not a step."""
    result = np.full(len(texts), UNKNOWN)
    chosen: list[tuple[int, re.Match[str]]] = []
    for expression in [re.compile(pattern)] if pattern is not None else RANGES:
        found = [
            expression.fullmatch(text) or expression.fullmatch(name) for text, name in zip(texts, full, strict=True)
        ]
        chosen = [(row, match) for row, match in enumerate(found) if match is not None and not of_nccl[row]]
        if chosen:
            break
    if pattern is not None and texts and not chosen:
        some = ", ".join(sorted(set(full))[:6])
        text = f"{export.label}: no NVTX range is named {pattern!r}; there are: {some}"
        return result, [Notice(kind="no_such_range", file=export.label, message=text)]
    unnumbered = []
    for row, match in chosen:
        number = next((group for group in match.groups() if group and group.isdecimal()), None)
        if number is not None and len(number) < 18:
            result[row] = int(number)
        elif payload[row] != UNKNOWN:
            result[row] = payload[row]
        else:
            unnumbered.append(row)
    if not unnumbered:
        return result, []
    rows = np.array(unnumbered)
    for process in np.unique(columns["globalTid"][rows] >> 24).tolist():  # each process counts from 0
        own = rows[columns["globalTid"][rows] >> 24 == process]
        result[own[np.argsort(columns["start"][own], kind="stable")]] = np.arange(len(own))
    text = f"{export.label}: the ranges {full[unnumbered[0]]!r} have no number; steps are counted from 0"
    return result, [Notice(kind="steps_counted", level="info", file=export.label, message=text)]


# --- NCCL's payload ------------------------------------------------------------------------------------------

_HEADER = struct.Struct("<4Q")  # domain, schema, size, offset
_COMMUNICATOR, _SIZE = "NCCL communicator ID", "Message size [bytes]"


def _payloads(export: Export, where: str, of_nccl: Column) -> tuple[list[str | None], Column]:
    """Return (communicator, bytes) that NCCL attached to each of its ranges, if the export holds the payload."""
    communicator: list[str | None] = [None] * len(of_nccl)
    size = np.full(len(of_nccl), UNKNOWN)
    schemas = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not of_nccl.any() or not export.has("NVTX_EVENTS", "binaryData") or not export.has(schemas, "schemaId", "name"):
        return communicator, size
    offsets: dict[tuple[int, str], int] = {}
    fields = f"schemaId, name, COALESCE(offset, 0) FROM {schemas} WHERE name IN (?, ?)"
    for schema, name, offset in export.rows(f"SELECT {fields}", (_COMMUNICATOR, _SIZE)):
        offsets[export.whole(schema), str(name)] = export.whole(offset)
    rows = export.rows(f"SELECT binaryData FROM NVTX_EVENTS WHERE {where} ORDER BY rowid")
    for row in np.flatnonzero(of_nccl).tolist():
        blob = _blob(rows[row][0])
        if blob is None or len(blob) < _HEADER.size:
            continue
        _, schema, length, begin = _HEADER.unpack_from(blob)
        body = blob[begin if _HEADER.size <= begin < len(blob) else _HEADER.size :][:length]
        found = {name: _field(body, offsets.get((schema, name))) for name in (_COMMUNICATOR, _SIZE)}
        identity, amount = found[_COMMUNICATOR], found[_SIZE]
        # The id is a hash, of which half is enough.
        communicator[row] = None if identity is None else f"{identity & 0xFFFFFFFF:08x}"
        if amount is not None and amount < 1 << 62:
            size[row] = amount
    return communicator, size


def _blob(value: object) -> bytes | None:
    """Return the payload's bytes: a BLOB, or hexadecimal text in some versions."""
    if isinstance(value, bytes):
        return value
    try:
        return bytes.fromhex(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _field(body: bytes, offset: int | None) -> int | None:
    return None if offset is None or offset + 8 > len(body) else int.from_bytes(body[offset : offset + 8], "little")
