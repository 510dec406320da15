"""Reads the file of an offline run of wandb: its records, with wandb's own messages.

The file is a log of LevelDB (github.com/google/leveldb, doc/log_format.md) after a header of 7 bytes.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _FIRST, _RECORD = 1 << 15, 7, 7
_FULL, _BEGIN, _LAST = 1, 2, 4
_WRITTEN_S = 30.0  # how long a busy machine may take to write a run


def records(path: Path) -> Iterator[Any]:
    from wandb.proto import wandb_internal_pb2  # its classes are made when it is imported

    data, at, parts = path.read_bytes(), _FIRST, b""
    while at + _RECORD <= len(data):
        if _BLOCK - at % _BLOCK < _RECORD:
            at += _BLOCK - at % _BLOCK
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        content = data[at + _RECORD : at + _RECORD + size]
        if len(content) < size:
            return  # it is being written
        parts = content if kind in (_FULL, _BEGIN) else parts + content
        at += _RECORD + size
        if kind in (_FULL, _LAST):
            record: Any = wandb_internal_pb2.Record()  # type: ignore[attr-defined,unused-ignore]
            record.ParseFromString(parts)
            yield record


def history(path: Path) -> list[dict[str, Any]]:
    """Return the rows that the run logged."""
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def summary(path: Path) -> dict[str, Any]:
    """Return the values that the run's summary was given."""
    return {
        item.key or "/".join(item.nested_key): json.loads(item.value_json)
        for record in records(path)
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
    }


def run_of(folder: Path) -> Any:
    """Return the record of the only run below a folder, and the path of its file.

    wandb's own process may still write the last rows when the run has finished: its last record is `exit`.
    """
    (path,) = folder.rglob("run-*.wandb")
    deadline = time.monotonic() + _WRITTEN_S
    while not any(record.WhichOneof("record_type") == "exit" for record in records(path)):
        assert time.monotonic() < deadline, f"{path}: the run does not end"
        time.sleep(0.05)
    return next(record.run for record in records(path) if record.WhichOneof("record_type") == "run"), path


def config(path: Path) -> dict[str, Any]:
    """Return the settings of the run."""
    found = [record for record in records(path) if record.WhichOneof("record_type") in ("config", "run")]
    updates = [record.config.update if record.HasField("config") else record.run.config.update for record in found]
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for update in updates for item in update}
