"""Damages run folders in every file and analyses them: no traceback, no hang, no control characters, bounded memory.

    python benchmarks/fuzz_runs.py --seconds 600            # prints its seed; --seed repeats a run
    python benchmarks/fuzz_runs.py --seed 7 --only 12       # folder number 12 of seed 7 alone; it is kept

Each folder is a copy of one in tests/data/runs with one to three changes: another value in a JSON or YAML file, another
column in a Parquet file, other bytes, a cut, a missing, empty or copied file, a folder, a FIFO, or a link in place of a
file. `rankscope analyze` reads it in a process of its own. A finding is printed with the changes that caused it.
"""

import argparse
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from rankscope.conf.cli import main as rankscope

RUNS = Path(__file__).parents[1] / "tests" / "data" / "runs"
LIMIT_S, LIMIT_MB = 20, 1500
ALLOWED = (0, 2, 3)
VALUES: list[Any] = [
    None, True, -1, 0, 1, 10**30, -(10**30), 1e308, float("nan"), "", "x", "9" * 5000, "\x1b[31m\x07", "a|b", "[/x]",
    "<b>&", [], {}, [[1]], [None], [{}], {"a": None}, 2**20, 2**63, "2026-13-45T99:99", "../../x",
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside `value`, of a list those of its first items."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def changed(value: Any, chance: random.Random) -> Any:
    """Replace or remove one value inside `value`."""
    path, new = chance.choice(list(places(value))), chance.choice(VALUES)
    if not path:
        return new
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if chance.random() < 0.15 and isinstance(holder, dict):
        del holder[path[-1]]
    else:
        holder[path[-1]] = new
    return value


def change_value(path: Path, chance: random.Random) -> None:
    if path.suffix == ".parquet":
        change_column(path, chance)
    elif path.suffix == ".yaml":
        path.write_text(yaml.safe_dump(changed(yaml.safe_load(path.read_text()), chance)))
    else:
        path.write_text(json.dumps(changed(json.loads(path.read_text()), chance)))


def change_column(path: Path, chance: random.Random) -> None:
    table = pq.read_table(path)
    rows, name = len(table), chance.choice(table.column_names)
    columns: list[Any] = [
        pa.array(["x\x1b"] * rows), pa.nulls(rows), pa.array([2**63 - 1] * rows), pa.array([-(2**63)] * rows),
        pa.array([float("nan")] * rows), pa.array([float("inf")] * rows), pa.array([[1]] * rows),
        pa.array([True] * rows), pa.array([b"\xff"] * rows), None, "empty",
    ]  # fmt: skip
    column = chance.choice(columns)
    if isinstance(column, str):
        table = table.slice(0, 0)
    elif column is None:
        table = table.drop([name])
    else:
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, path)


def change_bytes(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 5, 50])):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size + 1))


def replace_by(make: Callable[[Path], Any]) -> Callable[[Path, random.Random], None]:
    def change(path: Path, _: random.Random) -> None:
        path.unlink()
        make(path)

    return change


def copy_another(path: Path, chance: random.Random) -> None:
    others = sorted(other for other in path.parents[0].rglob("*") if other.is_file() and not other.is_symlink())
    shutil.copyfile(chance.choice(others), path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def add_rank(path: Path, chance: random.Random) -> None:
    ranks = next((parent for parent in path.parents if parent.name == "ranks"), None)
    if ranks is not None:
        shutil.copytree(ranks / "0", ranks / chance.choice(["2", "7", "007", "1048575", "99999999", "-1", "x"]))


CHANGES: dict[str, Callable[[Path, random.Random], None]] = {
    "value": change_value, "bytes": change_bytes, "cut": cut, "add rank": add_rank, "copy": copy_another,
    "remove": replace_by(lambda path: None), "empty": replace_by(lambda path: path.write_bytes(b"")),
    "folder": replace_by(lambda path: path.mkdir()), "fifo": replace_by(lambda path: os.mkfifo(path)),
    "loop": replace_by(lambda path: path.symlink_to(path.name)),
    "link": replace_by(lambda path: path.symlink_to("/etc/hostname")),
    "device": replace_by(lambda path: path.symlink_to("/dev/zero")),
}  # fmt: skip
WEIGHTS = [8, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1]


def damage(folder: Path, chance: random.Random) -> list[str]:
    """Change one to three files; returns what was done."""
    done = []
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        path = chance.choice(files)
        (name,) = chance.choices(list(CHANGES), WEIGHTS)
        try:
            CHANGES[name](path, chance)
        except (ValueError, TypeError, KeyError, IndexError, OSError, pa.ArrowException):
            continue  # for example a value in a file that was damaged before
        done.append(f"{name} {path.relative_to(folder)}")
    return done


def analyse(folder: Path) -> tuple[int, str, float, float]:
    """Return exit status, output, seconds and MB of `rankscope analyze` in a child process."""
    log = folder.with_suffix(".log")
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setsid()
        out = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(out, 1), os.dup2(out, 2)
        status = 1
        try:
            status = rankscope(["analyze", str(folder), "--no-cache", "--out", str(folder.with_suffix(".out"))])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)
    while True:
        ended, code, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > LIMIT_S + 5:
            os.killpg(child, 9)
        time.sleep(0.01)
    took = time.monotonic() - began
    return os.waitstatus_to_exitcode(code), log.read_text(errors="replace"), took, usage.ru_maxrss / 1024


def verdict(status: int, said: str, took: float, megabytes: float) -> str | None:
    """Return what is wrong, or None."""
    if "Traceback (most recent call last)" in said:
        return "traceback"
    if took > LIMIT_S:
        return f"{took:.0f} s"
    if status not in ALLOWED:
        return f"exit status {status}"
    if any((ord(letter) < 32 and letter != "\n") or ord(letter) == 127 for letter in said):
        return "control characters"
    return f"{megabytes:.0f} MB" if megabytes > LIMIT_MB else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    base = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024
    work = Path(tempfile.mkdtemp(prefix="rankscope-fuzz-"))
    sources = sorted(RUNS.iterdir())
    began, number, found = time.monotonic(), 0, 0
    while time.monotonic() - began < options.seconds:
        chance = random.Random(f"{options.seed} {number}")
        if options.only in (None, number):
            folder = work / f"run{number}"
            shutil.copytree(chance.choice(sources), folder)
            done = damage(folder, chance)
            status, said, took, megabytes = analyse(folder)
            wrong = verdict(status, said, took, megabytes - base)
            if wrong is not None:
                found += 1
                last = [line for line in said.splitlines() if line.strip()][-1:]
                print(f"{number}: {wrong}: {'; '.join(done)}: {last}", flush=True)
            if wrong is None and options.only is None:
                shutil.rmtree(folder)
                shutil.rmtree(folder.with_suffix(".out"), ignore_errors=True)
        if options.only == number:
            print(f"{folder}: {said}")
            break
        number += 1
    print(f"seed {options.seed}: {number} folders, {found} findings; those are kept in {work}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
