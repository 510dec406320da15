"""Reads what a stuck job left: torch's Flight Recorder dumps (JSON or pickle) and Python stacks, by rank.

A dump is recognised by its content, and its rank by the last number in its name (`nccl_trace_rank_3`, `dump.3.json`).
Pickles are read by an unpickler that builds nothing but plain data.
"""

import io
import json
import pickle
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from rankscope.analysis.core.notices import AnalysisError
from rankscope.conf.files import read_bytes

_SUFFIXES = (".json", ".txt", ".log", ".pickle", ".pkl")
_MOST_FILES = 100_000
# Of a dump. A pickle can hold the same list many times, so its size bounds nothing.
_MOST_CALLS, _MOST_GROUPS, _MOST_RANKS, _MOST_FRAMES = 1 << 17, 1 << 10, 1 << 16, 256
_MOST_ITEMS, _MOST_LETTERS = 32, 300
_NUMBERS = 1 << 63
_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)|^\s+(\S+) \(([^:()]+):(\d+)\)', re.MULTILINE)
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python3|rankscope/harness|<frozen|<string>")


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One collective that a rank enqueued."""

    seq: int
    kind: str
    sizes: str  # as the dump writes them
    dtype: str
    done: bool
    place: str | None = None  # the user's line, if frames were recorded


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank left. `calls` are by group and sequence number."""

    rank: int
    file: str
    groups: dict[str, list[int]]  # name of a process group -> its ranks; empty if the dump does not list them
    names: dict[str, str]  # name of a process group -> what the job calls it
    calls: dict[str, dict[int, Call]]
    pairs: int = 0  # sends and receives that are not done


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found in a folder."""

    dumps: dict[int, Dump]
    places: dict[int, str]  # rank -> the user's innermost line in its stack
    unread: list[str]  # files that look like dumps and cannot be read, with the reason


class _Plain(pickle.Unpickler):
    """Builds dicts, lists, tuples, strings and numbers; any other object is an error."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it wants to import {module}.{name}, which a dump never does")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to an object outside of it")


def read(folder: Path) -> Left:
    """Read all dumps and stacks below a folder. Raises `AnalysisError` if there is no dump."""
    if not folder.is_dir():
        raise AnalysisError(f"{folder}: not a folder; give the one with the dumps, one file per rank")
    dumps: dict[int, Dump] = {}
    places: dict[int, str] = {}
    unread = []
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    for path in files[:_MOST_FILES]:
        rank = _rank(path, folder)
        if rank is None:
            continue
        try:
            content = read_bytes(path)
        except OSError as error:
            unread.append(f"{path.name}: {error.strerror or error}")
            continue
        try:
            found = _decoded(content)
        except ValueError as error:
            unread.append(f"{path.name}: {error}")
            continue
        if found is not None:
            dumps[rank] = _dump(rank, path, found)
        elif (place := _place(content)) is not None:
            places[rank] = place
    if not dumps:
        more = f" ({unread[0]})" if unread else ""
        raise AnalysisError(
            f"{folder}: has no Flight Recorder dump{more}; set TORCH_FR_BUFFER_SIZE=2000 and "
            "TORCH_NCCL_DUMP_ON_TIMEOUT=1 in the job, or dump with torch's _dump_fr_trace_json"
        )
    return Left(dumps=dumps, places=places, unread=unread)


def _rank(path: Path, folder: Path) -> int | None:
    """Return the last number in the file's name, or else in the name of its folder (`ranks/3/stack.txt`)."""
    own = path.stem if path.suffix in _SUFFIXES else path.name
    for name in (own, path.parent.name):
        if (match := _NUMBER.search(name)) and len(match[1]) < 8:
            return int(match[1])
        if path.parent == folder:
            break
    return None


def _decoded(content: bytes) -> Mapping[str, Any] | None:
    """Return the dump in a file; None if it is none. Raises `ValueError` if it is one that cannot be read."""
    try:
        if content[:1] == b"{":
            found = json.loads(content)
        elif content[:1] == b"\x80":
            found = _Plain(io.BytesIO(content)).load()
        else:
            return None
    except (pickle.UnpicklingError, ValueError, RecursionError, EOFError, TypeError, KeyError, IndexError,
            AttributeError, MemoryError, OverflowError) as error:  # fmt: skip
        raise ValueError(f"a damaged dump: {error}") from None
    return found if isinstance(found, dict) and isinstance(found.get("entries"), list) else None


def _dump(rank: int, path: Path, found: Mapping[str, Any]) -> Dump:
    groups: dict[str, list[int]] = {}
    names: dict[str, str] = {}
    config = found.get("pg_config")
    for key, value in islice(config.items() if isinstance(config, dict) else (), _MOST_GROUPS):
        listed = _ranks(value.get("ranks")) if isinstance(value, dict) else []
        if listed:
            groups[_text(value.get("name") or key)] = listed
    calls: dict[str, dict[int, Call]] = {}
    pairs = 0
    for entry in found["entries"][:_MOST_CALLS]:
        if not isinstance(entry, dict) or not _is_number(entry.get("collective_seq_id"), -_NUMBERS, _NUMBERS):
            continue
        done = entry.get("retired") is True or entry.get("state") == "completed"
        if entry.get("is_p2p") is True:
            pairs += not done
            continue
        group = entry.get("process_group")
        name, told = [_text(part) for part in (*group[:2], "", "")][:2] if isinstance(group, list | tuple) else ("", "")
        names.setdefault(name, told)
        calls.setdefault(name, {})[entry["collective_seq_id"]] = _call(entry, done=done)
    return Dump(rank=rank, file=path.name, groups=groups, names=names, calls=calls, pairs=pairs)


def _call(entry: Mapping[str, Any], *, done: bool) -> Call:
    frames = entry.get("frames")
    places = [
        f"{_text(frame.get('filename'))}:{_text(frame.get('line'))} {_text(frame.get('name'))}"
        for frame in (frames[:_MOST_FRAMES] if isinstance(frames, list) else [])
        if isinstance(frame, dict) and not _LIBRARY.search(_text(frame.get("filename")))
    ]
    return Call(
        seq=entry["collective_seq_id"],
        kind=_text(entry.get("profiling_name") or "collective").partition(":")[2].partition(" ")[0] or "collective",
        sizes=_text(entry.get("input_sizes")),
        dtype=_text(entry.get("input_dtypes")),
        done=done,
        place=places[0] if places else None,
    )


def _text(value: Any, depth: int = 2) -> str:
    """Return a value of a dump as text, of a list its first items: a few bytes of a pickle can stand for billions."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item, depth - 1) for item in value[:_MOST_ITEMS])}]" if depth else "..."
    if isinstance(value, str):
        return value[:_MOST_LETTERS]
    return str(value) if value is None or isinstance(value, float) or _is_number(value, -_NUMBERS, _NUMBERS) else "?"


def _is_number(value: Any, least: int, above: int) -> bool:
    return isinstance(value, int) and least <= value < above


def _ranks(value: Any) -> list[int]:
    """Return the ranks of a group, which dumps write as a list or as its text."""
    if isinstance(value, str):
        return [int(number) for number in re.findall(r"\d+", value)[:_MOST_RANKS] if len(number) < 8]
    return [item for item in value[:_MOST_RANKS] if _is_number(item, 0, 10**7)] if isinstance(value, list) else []


def _main_thread(text: str) -> str:
    """Return the stack of the main thread: py-spy names it, and faulthandler writes it last."""
    if "MainThread" in text:
        return text[text.index("MainThread") :]
    threads = re.split(r"^(?=(?:Current thread|Thread) 0x)", text, flags=re.MULTILINE)
    return next((part for part in reversed(threads) if "most recent call first" in part), text)


def _place(content: bytes) -> str | None:
    """Return the user's innermost line of a stack by faulthandler or py-spy (innermost first); None without one."""
    text = content[: 1 << 20].decode(errors="replace")
    main = _main_thread(text)
    for match in _FRAME.finditer(main):
        file, line, name = (match[1], match[2], match[3]) if match[1] else (match[5], match[6], match[4])
        if not _LIBRARY.search(file):
            return f"{file}:{line} {name}"
    return None
