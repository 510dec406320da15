"""TensorBoard's event files. Each record is handed to the system at once.

The thread of tensorboardX's `SummaryWriter` ends at an error, such as a full disk. Whoever writes then waits forever.
"""

import socket
import struct
import time
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from rankscope.conf.files import naming


class EventFile:
    """A new event file in a folder, which is made if it is missing. Raises `OSError`, which names the file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}"
        self._file = self._path.open("wb")
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, record: Any, step: int = 0) -> None:
        """Write one of the records that `tensorboardX.summary` makes."""
        self._append(Event(wall_time=time.time(), step=step, summary=record))

    def close(self) -> None:
        with naming(self._path):
            self._file.close()

    def _append(self, event: Any) -> None:
        data = event.SerializeToString()
        size = struct.pack("<Q", len(data))
        with naming(self._path):
            self._file.write(size + _checksum(size) + data + _checksum(data))
            self._file.flush()


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
