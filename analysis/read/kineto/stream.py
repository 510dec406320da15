"""A trace file as a stream of decoded bytes: plain or gzip by its content, cut or corrupt files up to where they go.

gzip is fed to a `decompressobj`: file objects raise at the end of a cut file and throw away what they had decoded.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

WINDOW = 8 << 20  # bytes handed on at a time
_GZIP = b"\x1f\x8b"
_READ = 1 << 20


class Stream:
    """Iterate over the decoded windows of `path`; afterwards `fault` says whether and how the file was damaged."""

    def __init__(self, path: Path, window: int = WINDOW) -> None:
        self.path = path
        self.window = window
        self.fault: str | None = None  # None, "gzip_truncated" or "gzip_corrupt"

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            gzipped = file.read(2) == _GZIP
            file.seek(0)
            yield from self._inflate(file) if gzipped else iter(lambda: file.read(self.window), b"")

    def _inflate(self, file: BinaryIO) -> Iterator[bytes]:
        decoder = isal_zlib.decompressobj(wbits=31)
        pending = b""
        while True:
            data = pending or file.read(_READ)
            if not data:
                break
            if decoder.eof:  # a further gzip member, as appending writers make them; zero padding is legal
                if not data.strip(b"\0"):
                    pending = b""
                    continue
                decoder = isal_zlib.decompressobj(wbits=31)
            try:
                out = decoder.decompress(data, self.window)
            except isal_zlib.error:  # type: ignore[misc]  # an alias of zlib.error that the stubs lose
                self.fault = "gzip_corrupt"
                return
            pending = decoder.unconsumed_tail or decoder.unused_data
            if out:
                yield out
        if not decoder.eof:
            self.fault = "gzip_truncated"
