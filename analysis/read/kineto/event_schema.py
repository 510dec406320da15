"""The decoded fields of a trace event, and the decoder: JSON text in, `Event`s out. Unknown keys are skipped."""

import re
from typing import Any

import msgspec

from rankscope.analysis.read.decode import EXACT_BELOW


class Args(
    msgspec.Struct,
    gc=False,
    rename={
        "external_id": "External id",
        "external_id_before_1_12": "external id",
        "occupancy": "est. achieved occupancy %",
        "sm_share": "blocks per SM",
        "allocated": "Total Allocated",
        "reserved": "Total Reserved",
        "device_type": "Device Type",
        "collective": "Collective name",
        "in_nelems": "In msg nelems",
        "out_nelems": "Out msg nelems",
        "group_size": "Group size",
        "group": "Process Group Name",
        "group_ranks": "Process Group Ranks",
        "group_desc": "Process Group Description",
        "seq": "Seq",
        "to_rank": "Dst Rank",
        "from_rank": "Src Rank",
        "python_parent": "Python parent id",
    },
):
    """The arguments of an event that the analysis uses. Each may hold any JSON value."""

    external_id: Any = None
    external_id_before_1_12: Any = None
    correlation: Any = None
    device: Any = None
    stream: Any = None
    bytes: Any = None
    occupancy: Any = None
    sm_share: Any = None
    allocated: Any = None
    reserved: Any = None
    device_type: Any = None
    collective: Any = None
    in_nelems: Any = None
    out_nelems: Any = None
    group_size: Any = None
    dtype: Any = None
    group: Any = None
    group_ranks: Any = None
    group_desc: Any = None
    seq: Any = None
    to_rank: Any = None  # of a send
    from_rank: Any = None  # of a receive
    python_parent: Any = None  # of a Python frame: the frame that called it

    @property
    def peer(self) -> Any:
        """The other rank of a send or a receive."""
        return self.from_rank if self.to_rank is None else self.to_rank


class Event(msgspec.Struct, gc=False):
    """One trace event. `ts` and `dur` are microseconds, as numbers or strings."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """An event whose time is kept as text: microseconds since 1970 with decimals do not fit a double."""

    ts: msgspec.Raw = msgspec.Raw(b"")


_EVENTS = msgspec.json.Decoder(list[Event])
_EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
_BYTE = re.compile(r"\(byte (\d+)\)")


def decode(text: bytes) -> list[Event]:
    """Decode a JSON array of events; raises `msgspec.MsgspecError` if the text is not valid."""
    try:
        events = _EVENTS.decode(text)
    except RecursionError:
        raise msgspec.ValidationError("nested deeper than any trace") from None
    if any(type(event.ts) is float and event.ts >= EXACT_BELOW for event in events):
        exact = _EXACT_EVENTS.decode(text)
        for event in exact:
            event.ts = bytes(event.ts).decode().strip('"')  # type: ignore[assignment]
        return list(exact)
    return events


def _place(error: Exception) -> int:
    match = _BYTE.search(str(error))
    return int(match[1]) if match else 0


def array_end(error: Exception, text: bytes) -> int:
    """Return the position of the array's closing bracket, if the decoder complained about the text after it."""
    return text.rfind(b"]", 0, _place(error))


def is_wrong_cut(error: Exception, text: bytes) -> bool:
    """Return whether only closing brackets are missing at the very end, so that the cut was inside an event."""
    return "truncated" in str(error) or (_BYTE.search(str(error)) is not None and _place(error) >= len(text) - 2)
