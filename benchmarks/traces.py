"""Makes large trace files from a small real one, in Kineto's own layout, with times, ids and steps that continue.

One file of any size repeats the events of a real rank, shifted in time. Many ranks are copies of one real rank, each
with its own number and its own clock.
"""

import gzip
import re
from pathlib import Path

from isal import igzip

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
# The values that change from one repetition to the next: times, ids, step numbers.
_MOVING = re.compile(
    rb'("ts": )(\d+)(\.\d+)?|("(?:correlation|External id|id|Ev Idx|Record function id|Seq|Sequence number)": ?)(\d+)'
    rb"|(ProfilerStep#)(\d+)"
)
_IDS = 1_000_000  # difference of ids between two successive repetitions
_CLOCK_NS = 37_000_000  # difference between the clocks of neighbouring ranks


def repeated(source: Path, target: Path, size: int) -> int:
    """Write a trace of about `size` bytes and return the number of events."""
    head, body, tail = _split(gzip.decompress(source.read_bytes()))
    pieces, rest = _pieces(body)
    times = [number for _, kind, number in pieces if kind == "ts"]
    period = max(times) - min(times) + 1000  # us
    steps = [number for _, kind, number in pieces if kind == "step"]
    count = max(steps) - min(steps) + 1
    events = body.count(b'"ph":')
    written = repetition = 0
    with target.open("wb") as file:
        file.write(head)
        while written < size:
            if repetition:
                file.write(b",")
            shifts = {"ts": period * repetition, "id": _IDS * repetition, "step": count * repetition}
            written += file.write(b"".join(b"%b%d" % (text, number + shifts[kind]) for text, kind, number in pieces))
            written += file.write(rest)
            repetition += 1
        file.write(tail)
    return events * repetition


def many_ranks(source: Path, folder: Path, ranks: int, *, compressed: bool = True) -> int:
    """Write one file per rank, each with its own clock. Return the bytes of JSON of one file."""
    text = gzip.decompress(source.read_bytes())
    world = re.search(rb'"world_size": (\d+)', text)
    assert world is not None
    listed = b"[" + b", ".join(b"%s" % str(rank).encode() for rank in range(int(world[1]))) + b"]"
    everyone = b"[" + b", ".join(b"%d" % rank for rank in range(ranks)) + b"]"
    shortened = everyone if ranks <= 30 else b"[0, 1, 2, ..., %d]" % (ranks - 1)  # as the profiler writes them
    head, body, tail = _split(text)
    body = body.replace(b'"Process Group Ranks": "' + listed + b'"', b'"Process Group Ranks": "' + shortened + b'"')
    body = body.replace(b'"Group size": %s' % world[1], b'"Group size": %d' % ranks)
    head = head.replace(b'"ranks": ' + listed, b'"ranks": ' + everyone).replace(
        b'"world_size": %s' % world[1], b'"world_size": %d' % ranks
    )
    base = re.search(rb'"baseTimeNanoseconds": (\d+)', head)
    assert base is not None
    for rank in range(ranks):
        clock = b'"baseTimeNanoseconds": %d' % (int(base[1]) + rank * _CLOCK_NS)
        own = re.sub(rb'("distributedInfo": \{[^{}]*?"rank": )\d+', rb"\g<1>%d" % rank, head.replace(base[0], clock))
        document = own + body + tail
        if compressed:
            (folder / f"rank{rank}.json.gz").write_bytes(igzip.compress(document, compresslevel=1))
        else:
            (folder / f"rank{rank}.json").write_bytes(document)
    return len(document)


def _split(text: bytes) -> tuple[bytes, bytes, bytes]:
    match = _ARRAY.search(text)
    assert match is not None
    end = text.rindex(b"]")
    return text[: match.end()], text[match.end() : end], text[end:]


def _pieces(body: bytes) -> tuple[list[tuple[bytes, str, int]], bytes]:
    """Cut a text before each changing number: return (text before it, its kind, the number) for each, and the rest."""
    pieces, done = [], 0
    for match in _MOVING.finditer(body):
        kind, group = ("ts", 2) if match[2] else ("id", 5) if match[5] else ("step", 7)
        pieces.append((body[done : match.start(group)], kind, int(match[group])))
        done = match.end(group)
    return pieces, body[done:]
