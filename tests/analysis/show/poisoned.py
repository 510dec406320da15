"""Recordings with poison in every text: of traces, exports and each file of a run folder, in names of files too."""

import gzip
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

DATA = Path(__file__).parents[2] / "data"
POISON = (
    "\x1b]0;owned\x07\x1b[2J[/x][link=http://x]|<img src=x onerror=alert(1)>$\\frac$=1+1\u202e\u061c\u2028\U000e0041\r`"
)
_IN_NAMES = POISON.replace("/", "") + "\udcff"  # the last is a byte that is not UTF-8
_STRUCTURE = {"ph", "cat", "ts", "dur", "pid", "tid", "id", "folder", "status", "phase", "kind", "in_nelems"}
_FREE = {"name", "runs_dir", "root", "rdzv_endpoint"}  # the texts of config.yaml that are no choice among words


def poison(path: Path) -> None:
    """Put the poison at the end of every text in a file, or in every file of a folder."""
    if path.is_dir():
        for file in [file for file in path.rglob("*") if file.is_file()]:
            poison(file)
    elif path.suffix == ".gz":
        path.write_bytes(
            gzip.compress(json.dumps(poisoned(json.loads(gzip.decompress(path.read_bytes())))).encode(), 1)
        )
    elif path.suffix == ".json":
        path.write_text(json.dumps(poisoned(json.loads(path.read_text()))))
    elif path.suffix == ".yaml":
        path.write_text(yaml.safe_dump(_settings(yaml.safe_load(path.read_text()))))
    elif path.suffix == ".parquet":
        pq.write_table(_table(pq.read_table(path)), path)
    elif path.suffix == ".sqlite":
        _database(path)


def poisoned(value: Any) -> Any:
    """Return `value` with poison in its texts; structure stays, such as the kind of an event, and marks of steps."""
    if isinstance(value, dict):
        return {name: item if name in _STRUCTURE else poisoned(item) for name, item in value.items()}
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    if not isinstance(value, str) or value.startswith("ProfilerStep") or not value:
        return value
    try:
        return json.dumps(poisoned(json.loads(value))) if value[0] in "[{" else value + POISON
    except ValueError:
        return value + POISON


def _settings(value: Any) -> Any:
    return {
        name: _settings(item) if isinstance(item, dict) else item + POISON if name in _FREE and item else item
        for name, item in value.items()
    } | ({"name": value["name"]} if "passes" not in value and "name" in value else {})  # a group's name is a choice


def _table(table: pa.Table) -> pa.Table:
    for number, name in enumerate(table.column_names):
        if pa.types.is_string(table[name].type) and name not in _STRUCTURE:
            table = table.set_column(number, name, pc.binary_join_element_wise(table[name], POISON, ""))
    return table


def _database(path: Path) -> None:
    database = sqlite3.connect(path)
    for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for column in [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]:
            text = f"typeof(\"{column}\") = 'text' AND \"{column}\" NOT LIKE '%step%'"
            database.execute(f'UPDATE "{table}" SET "{column}" = "{column}" || ? WHERE {text}', (POISON,))
    database.commit()
    database.close()


def make_run(folder: Path) -> Path:
    """Return a run folder with every file that the analysis reads."""
    run = shutil.copytree(DATA / "runs" / "resnet_w2", folder / "run")
    for extra, source in (("plain-2", "plain"), ("timed", "plain"), ("detail", "torch"), ("nsys", "plain")):
        shutil.copytree(run / "passes" / source, run / "passes" / extra)
    for rank in (0, 1):
        ranks = {name: run / "passes" / name / "ranks" / str(rank) for name in ("plain", "timed", "nsys", "torch")}
        _make_slow(ranks["plain"] / "steps.parquet", row=15)
        stacks = [{"step": step, "place": "train.py:12 load", "stack": ["train.py:12 load"]} for step in range(8, 20)]
        (ranks["plain"] / "slow_steps.json").write_text(json.dumps(stacks))
        (ranks["timed"] / "calls.json").write_text(json.dumps(timed_calls(rank)))
        shutil.copy(DATA / "nsys" / "gloo_w2" / f"rank_{rank}.sqlite", ranks["nsys"] / "nsys.sqlite")
        info = json.loads((ranks["torch"] / "rank.json").read_text())
        (ranks["torch"] / "rank.json").write_text(json.dumps(info | {"notes": ["a note"], "step_is": "an iteration"}))
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"failure": {"kind": "crash", "message": "rank 1 failed"}}))
    poison(run)
    return run.rename(folder / f"run{_IN_NAMES}")


def _make_slow(path: Path, row: int) -> None:
    table = pq.read_table(path).to_pydict()
    for name in ("host_ns", "device_ns", "data_wait_ns"):
        table[name][row] += 10**9
    pq.write_table(pa.table(table), path)


def timed_calls(rank: int) -> dict[str, Any]:
    """Return the content of a calls.json: all-reduces that take longer on later ranks."""
    count = 40
    return {
        "group": ["default"] * count,
        "seq": list(range(count)),
        "kind": ["nccl:all_reduce"] * count,
        "in_nelems": [1 << 20] * count,
        "out_nelems": [1 << 20] * count,
        "dtype": ["Float"] * count,
        "duration_ns": [1_000_000 + 500_000 * rank] * count,
        "enqueued_ns": [1_764_300_000_000_000_000 + 2_000_000 * number for number in range(count)],
    }


def make_traces(folder: Path) -> Path:
    traces = shutil.copytree(DATA / "traces" / "two_groups_w2", folder / f"traces{_IN_NAMES}")
    poison(traces)
    for path in list(traces.glob("rank*")):
        path.rename(path.with_name(f"{path.name.partition('.')[0]}{_IN_NAMES}.json.gz"))
    (traces / f"rank7{_IN_NAMES}.json").write_text('{"traceEvents": [')  # a notice names it
    return traces


def make_exports(folder: Path) -> Path:
    exports = folder / f"exports{_IN_NAMES}"
    exports.mkdir()
    for rank in (0, 1):
        shutil.copy(DATA / "nsys" / "gloo_w2" / f"rank_{rank}.sqlite", exports / f"rank{rank}{_IN_NAMES}.sqlite")
    poison(exports)
    return exports


def make_sweep(folder: Path) -> Path:
    """Return a sweep of two points, one of which failed."""
    run = make_run(folder)
    for name in ("torch", "detail", "nsys"):
        shutil.rmtree(run / "passes" / name)
    for number in ("000", "001"):
        shutil.copytree(run, folder / "sweep" / "points" / number)
    listed = [
        {"id": number, "overrides": [POISON], "folder": number, "status": status, "failure": {"message": POISON}}
        for number, status in (("000", "completed"), ("001", "failed"))
    ]
    record = {"layout": 1, "overrides": [POISON], "points": listed}
    (folder / "sweep" / "sweep.json").write_text(json.dumps(record))
    return folder / "sweep"
