"""Repairs JSON that profilers wrote incorrectly, in one block of complete events; and splits damaged text into records.

Input: a block of text that the decoder refused. Output: text that it may accept, with the repairs made; or the single
records that can be read. No repair is silent: every change is counted by kind.
"""

import re
from collections import Counter
from collections.abc import Iterator

# A JSON string, or a bare token that a C++ stream wrote for a number that is not finite.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|(?<![\w"])[-+]?(?:nan(?:\(\w*\))?|inf(?:inity)?)\b', re.IGNORECASE | re.DOTALL)
# An escape: a good one (a pair of surrogates is one), half of a pair alone, or a bad one.
_BAD_ESCAPE = re.compile(
    rb'\\(?:(["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})'
    rb"|(u[0-9a-fA-F]{4})|(.|$))",
    re.DOTALL,
)
_CONTROL = re.compile(rb"[\x00-\x1f]")
BOUNDARY = re.compile(rb"\}\s*,\s*\{")
_LOOSE_BOUNDARY = re.compile(rb"\}\s*,?\s*\{")
_MAX_JOINED = 64  # pieces that may form one record with nested objects


def repair(block: bytes) -> tuple[bytes, Counter[str]]:
    """Return `block` with invalid bytes, bare non-finite tokens and bad strings repaired, and a count of each kind."""
    done: Counter[str] = Counter()
    text = block.decode("utf-8", "replace")
    replaced = text.count("\ufffd")
    if replaced:
        encoded = text.encode()
        # The file itself may contain U+FFFD, so this is a repair only if the block changed.
        if encoded != block:
            done["invalid_bytes_replaced"] += replaced
            block = encoded

    def mend(match: re.Match[bytes]) -> bytes:
        token = match[0]
        if not token.startswith(b'"'):
            done["non_finite_token"] += 1
            return b"null"
        if b"\\" in token:
            fixed = _BAD_ESCAPE.sub(lambda m: m[0] if m[1] else b"\\ufffd" if m[2] else b"\\\\" + m[3], token)
            if fixed != token:
                done["invalid_escape_repaired"] += 1
                token = fixed
        if _CONTROL.search(token):
            done["invalid_bytes_replaced"] += 1
            token = _CONTROL.sub(lambda m: b"\\u%04x" % m[0][0], token)
        return token

    return _TOKEN.sub(mend, block), done


def records(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, text) of pieces that look like single records. Borders inside strings are not recognised."""
    start = 0
    for match in _LOOSE_BOUNDARY.finditer(block):
        yield start, block[start : match.start() + 1]
        start = match.end() - 1
    yield start, block[start:]


def joined(block: bytes) -> Iterator[list[tuple[int, bytes]]]:
    """Yield for each piece the texts that start with it: on its own, with its successor, and so on."""
    pieces = list(records(block))
    for index, (offset, _) in enumerate(pieces):
        ends = [start + len(text) for start, text in pieces[index : index + _MAX_JOINED]]
        yield [(offset, block[offset:end]) for end in ends]
