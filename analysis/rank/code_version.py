"""A digest of this program's sources, so that nothing which other code made is ever used."""

import functools
import hashlib
from pathlib import Path

from rankscope import conf

_SOURCES = (".py", ".jinja", ".js", ".css")


@functools.cache
def code_version() -> str:
    """Return the digest of the sources of `analysis` and `conf`, with the templates of the pages."""
    folders = [Path(__file__).parents[1], Path(conf.__file__).parent]
    sources = [path for folder in folders for path in folder.rglob("*") if path.suffix in _SOURCES]
    return hashlib.blake2b(b"".join(path.read_bytes() for path in sorted(sources)), digest_size=8).hexdigest()
