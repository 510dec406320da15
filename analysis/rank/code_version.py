"""A digest of this program's sources, so that nothing which other code made is ever used."""

import functools
import hashlib
import os
from pathlib import Path

from rankscope import conf

_SOURCES = (".py", ".jinja", ".js", ".css")


@functools.cache
def code_version() -> str:
    """Return the digest of the sources of `analysis` and `conf`, with the templates of the pages."""
    digest = hashlib.blake2b(digest_size=8)
    for top in (Path(__file__).parents[1], Path(conf.__file__).parent):
        found = [os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names]
        for path in sorted(path for path in found if path.endswith(_SOURCES)):
            with open(path, "rb", buffering=0) as file:
                digest.update(file.read())
    return digest.hexdigest()
