"""What of a trace event is decoded, and the decoders: JSON text in, `Event`s out; unknown keys are skipped."""

from typing import Any

import msgspec


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
        "seq": "Seq",
    },
):
    """The arguments of an event that the analysis uses; any JSON value may stand there."""

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
    seq: Any = None


class Event(msgspec.Struct, gc=False):
    """One trace event; `ts` and `dur` are microseconds, as numbers or strings."""

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


EVENTS = msgspec.json.Decoder(list[Event])
EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])
