"""A trace file as a stream of decompressed bytes. The content decides whether it is plain or gzip.

A cut or corrupt file is read as far as possible. gzip data goes through a `decompressobj`, because gzip file objects
raise at the end of a cut file and discard what they had decoded.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib

from rankscope.conf.files import open_regular

Window = bytes | memoryview
WINDOW = 8 << 20  # bytes yielded at a time
_GZIP = b"\x1f\x8b"
_READ = 1 << 20  # bytes of gzip
_READ_OF_MANY = 1 << 18  # bytes of gzip, after the first member: a decoder copies what follows its member


class Stream:
    """Iterates over the decompressed windows of `path`; afterwards `fault` says how the file is damaged, if it is."""

    def __init__(self, path: Path, window: int = WINDOW) -> None:
        self.path = path
        self.window = window
        self.fault: str | None = None  # None, "gzip_truncated" or "gzip_corrupt"

    def __iter__(self) -> Iterator[bytes]:
        with os.fdopen(open_regular(self.path, follow=True), "rb") as file:
            gzipped = file.read(2) == _GZIP
            file.seek(0)
            yield from self._gathered(file) if gzipped else iter(lambda: file.read(self.window), b"")

    def in_one_buffer(self) -> Iterator[Window]:
        """Yield the windows; each is valid until the next one. New memory for each takes as long as reading a file."""
        with os.fdopen(open_regular(self.path, follow=True), "rb", buffering=0) as file:
            if file.read(2) == _GZIP:
                yield from self
                return
            file.seek(0)
            size = max(_READ, os.fstat(file.fileno()).st_size + 1)  # some file systems do not know the size
            buffer = memoryview(bytearray(min(self.window, size)))
            while size := file.readinto(buffer):
                yield buffer[:size]

    def _gathered(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield windows of the usual size, because the reader looks at each again from its beginning."""
        parts, size = [], 0
        for part in self._inflate(file):
            parts.append(part)
            size += len(part)
            if size >= self.window:
                yield b"".join(parts)
                parts, size = [], 0
        if parts:
            yield b"".join(parts)

    def _inflate(self, file: BinaryIO) -> Iterator[bytes]:
        decoder = isal_zlib.decompressobj(wbits=31)
        pending, size = b"", _READ
        while True:
            data = pending or file.read(size)
            if not data:
                break
            # Another gzip member follows, as appending writers produce them. Zero padding is legal.
            if decoder.eof:
                if not data.strip(b"\0"):
                    pending = b""
                    continue
                decoder, size = isal_zlib.decompressobj(wbits=31), _READ_OF_MANY
            try:
                out = decoder.decompress(data, self.window)
            except isal_zlib.error:  # type: ignore[misc]  # an alias of zlib.error that the stubs do not know
                self.fault = "gzip_corrupt"
                return
            pending = decoder.unconsumed_tail or decoder.unused_data
            if out:
                yield out
        if not decoder.eof:
            self.fault = "gzip_truncated"
