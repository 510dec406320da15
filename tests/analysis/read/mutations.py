"""Damaged and odd traces, made from sound ones: single events changed in bytes, tokens and values."""

import gzip
import random
import re
from collections.abc import Iterator
from pathlib import Path

_HEAD = b'{"schemaVersion": 1, "baseTimeNanoseconds": 1000, "traceEvents": ['
_TAILS = (b"\n  ]}", b'\n  ], "traceName": "x"\n}', b"\n  ]", b'\n  ], "distributedInfo": {"rank": 3}}')
_BYTES = b'"\\{}[]:,0123456789.-+eEntf \n\t\x00\x7f\xc3\xa9\xffXBEau'
_TOKENS = (
    *(b"null", b"true", b"nan", b"inf", b'"a":1,', b"{}", b"[]", b", ", b"1e5", b"1.5", b"-0", b"00", b"\\n", b"\\q"),
    *(b"\\u00e9", "é".encode(), b'"ph":"X",', b'"cat": "kernel",', b'"args":{},', b'"name":null,', b'"pid":"x",'),
    *(b'"ts": 1753000000000000.125,', b"99999999999999999999"),
)
_VALUES = (
    *(b"null", b"true", b"truex", b"1", b"01", b"-0", b"-3", b"--1", b"1.5", b"1.2.3", b".5", b"5.", b"0.1234", b"1e3"),
    *(b"12345678901234567890", b"8796093022209.5", b'"7"', b'"s"', b'"stream 7"', b'"a" "b"', b"[1 2]", b'["a":1]'),
    *(b'[1, {"a": [2]}]', b'{"a": "b", "c": [true]}', b'{"x":{"y":"z"}}', b'[[1,2],["a"]]', b'{"a" 1}', b"{1}"),
)


def sources(folder: Path) -> list[list[bytes]]:
    """Return the events, as text, of rank 0 of every case and trace below `folder`."""
    found = []
    for path in sorted(folder.glob("*/*/rank0.json*")):
        text = path.read_bytes()
        text = (
            gzip.decompress(text)
            if text[:2] == b"\x1f\x8b" and path.suffix == ".gz" and "T05" not in str(path)
            else text
        )
        match = re.search(rb'"traceEvents"\s*:\s*\[', text)
        if match:
            found.append(re.split(rb'(?<=\})\s*,\s*(?=\{\s*"ph)', text[match.end() : text.rfind(b"]")]))
    return [events for events in found if len(events) > 2]


def mutated(events: list[list[bytes]], seed: int) -> Iterator[tuple[bytes, int]]:
    """Yield trace files without end, each with one or two events changed, and a number of bytes to read at a time."""
    rng = random.Random(seed)
    while True:
        every = rng.choice(events)
        first = rng.randrange(max(1, len(every) - 12))
        chosen = every[first : first + rng.randrange(4, 12)]
        for at in rng.sample(range(len(chosen)), rng.choice([1, 1, 1, 2])):
            chosen[at] = _changed(chosen[at], rng)
        text = _HEAD + rng.choice([b",\n  ", b",", b" , "]).join(chosen) + rng.choice(_TAILS)
        if rng.random() < 0.05:
            text = text[: rng.randrange(len(_HEAD), len(text))]
        yield text, rng.choice([1 << 20, 2000, 1024, 700])


def _changed(event: bytes, rng: random.Random) -> bytes:
    text = bytearray(event)
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        at = rng.randrange(len(text)) if text else 0
        match rng.randrange(6):
            case 0:
                text[at : at + 1] = bytes([rng.choice(_BYTES)])
            case 1:
                text[at:at] = bytes([rng.choice(_BYTES)])
            case 2:
                del text[at : at + rng.choice([1, 1, 2, 5])]
            case 3:
                text[at:at] = rng.choice(_TOKENS)
            case 4:
                begin = rng.randrange(len(text) + 1)
                text[at:at] = text[begin : begin + rng.randrange(1, 30)]
            case _:
                places = list(re.finditer(rb"(?<=: )[^,}\n]+", bytes(text)))
                if places:
                    place = rng.choice(places)
                    text[place.start() : place.end()] = rng.choice(_VALUES)
    return bytes(text)
