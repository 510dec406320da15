"""Lists of ranks as users write them: `0,3,8-15`."""

import re

_MOST = 1 << 20  # no job has more ranks, and a longer list would fill the memory
_PART = re.compile(r"(\d+)(?:-(\d+))?")


def parse(text: str) -> frozenset[int]:
    """Return the ranks of a list; raises `ValueError` if it is none, or names ranks that no job has."""
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a list of ranks such as 0,3,8-15")
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= _MOST:
            raise ValueError(f"{text!r}: no job has so many ranks")
        found.update(range(first, last + 1))
    return frozenset(found)
