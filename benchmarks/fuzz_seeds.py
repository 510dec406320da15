"""Small recordings for the fuzzer of commands: real ones from tests/data, cut to about a hundred records of each rank.

A recording is a mapping from a path in its folder to the file's bytes.
"""

import gzip
import io
import json
import random
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.analysis.show.poisoned import timed_calls

DATA = Path(__file__).parents[1] / "tests" / "data"
Recording = dict[str, bytes]
_RECORDS = 30  # of a rank that are kept besides steps, collectives and what launched them


def cut(document: dict[str, Any], records: int = _RECORDS) -> dict[str, Any]:
    """Keep steps, some collectives with their launches, and a sample of other events."""
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    steps = [event for event in events if str(event.get("name")).startswith("ProfilerStep")][:4]
    calls = [event for event in events if "nccl" in str(event.get("name")) or "gloo" in str(event.get("name"))][:10]
    launches = {(event.get("args") or {}).get("correlation") for event in calls} - {None}
    matching = [event for event in events if (event.get("args") or {}).get("correlation") in launches]
    others = random.Random(0).sample(events, min(records, len(events)))
    kept = {id(event): event for event in [*steps, *calls, *matching, *others]}
    return document | {"traceEvents": [event for event in events if id(event) in kept]}


def read_json(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes(), strict=False)


def packed(document: Any) -> bytes:
    return gzip.compress(json.dumps(document).encode(), 1)


def traces() -> list[Recording]:
    """Return made and real traces: as JSON, compressed, with the words of ROCm, and without a device."""
    found = []
    for folder in sorted((DATA / "cases").iterdir()):
        files = {path.name: path.read_bytes() for path in sorted(folder.glob("rank*"))} if folder.is_dir() else {}
        if files and sum(map(len, files.values())) < 40_000:
            found.append(files)
    for folder in sorted((DATA / "traces").iterdir()):
        documents = {path.name: cut(read_json(path)) for path in sorted(folder.glob("rank*.json.gz"))[:2]}
        found.append({name: packed(document) for name, document in documents.items()})
        found.append({name.removesuffix(".gz"): _as_rocm(document) for name, document in documents.items()})
    ranks = sorted((DATA / "runs" / "resnet_w2" / "passes" / "torch" / "ranks").iterdir())
    documents = {f"rank{path.name}.json.gz": cut(read_json(path / "trace.json.gz")) for path in ranks}
    found.append({name: packed(_on_cpu(document)) for name, document in documents.items()})
    return found


def _as_rocm(document: dict[str, Any]) -> bytes:
    text = json.dumps(document).replace('"cuda', '"hip').replace('"cat": "hip_runtime"', '"cat": "cuda_runtime"')
    return text.replace("ncclDevKernel", "rcclGenericKernel").replace("NVIDIA H100", "AMD Instinct MI300X").encode()


def _on_cpu(document: dict[str, Any]) -> dict[str, Any]:
    device = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "gpu_user_annotation", "ac2g", "cuda_driver")
    return document | {"traceEvents": [event for event in document["traceEvents"] if event.get("cat") not in device]}


def exports() -> list[Recording]:
    """Return exports of Nsight Systems: of a GPU, cut to some kernels, and of a CPU with gloo."""
    found = []
    for folder in sorted((DATA / "nsys").iterdir()):
        paths = sorted(folder.glob("*.sqlite"))[:2]
        if paths:
            found.append({path.name: _cut_export(path) for path in paths})
    return found


def _cut_export(path: Path) -> bytes:
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.deserialize(path.read_bytes())
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
        database.execute(
            "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 50 AND (rowid % 4 OR shortName NOT IN "
            "(SELECT id FROM StringIds WHERE value LIKE '%nccl%'))"
        )
        launches = "(SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL)"
        database.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId NOT IN {launches}")
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_MEMSET WHERE rowid % 40")
    database.execute("VACUUM")
    return database.serialize()


def runs() -> list[Recording]:
    """Return run folders with every file that the analysis reads, and a sweep of two of them."""
    found = [_run(folder) for folder in sorted((DATA / "runs").iterdir())]
    every = _with_all_passes(found[1])
    sweep = {f"points/{number}/{name}": data for number in ("000", "001") for name, data in every.items()}
    points = [{"id": number, "overrides": ["batch_size=8"], "folder": number} for number in ("000", "001")]
    record = {"layout": 1, "overrides": [], "points": [point | {"status": "completed"} for point in points]}
    return [*found, every, sweep | {"sweep.json": json.dumps(record).encode()}]


def _run(folder: Path) -> Recording:
    files: Recording = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.name == "trace.json.gz":
            files[name] = packed(cut(read_json(path)))
        else:
            files[name] = _few_rows(path.read_bytes()) if path.suffix == ".parquet" else path.read_bytes()
    return files


def _few_rows(data: bytes) -> bytes:
    import pyarrow.parquet as pq

    target = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(data)).slice(0, 24), target)
    return target.getvalue()


def _with_all_passes(run: Recording) -> Recording:
    """Add a repeat, the timed, detail and nsys passes, samples of slow steps, and an earlier analysis."""
    from rankscope.analysis import load, summarise
    from rankscope.analysis.options import Options

    files = dict(run)
    for rank in ("0", "1"):
        for name in ("rank.json", "steps.parquet"):
            for extra, source in (("plain-2", "plain"), ("timed", "plain"), ("detail", "torch"), ("nsys", "torch")):
                files[f"passes/{extra}/ranks/{rank}/{name}"] = run[f"passes/{source}/ranks/{rank}/{name}"]
        files[f"passes/detail/ranks/{rank}/trace.json.gz"] = run[f"passes/torch/ranks/{rank}/trace.json.gz"]
        files[f"passes/detail/ranks/{rank}/key_averages.parquet"] = run["passes/torch/ranks/0/key_averages.parquet"]
        files[f"passes/timed/ranks/{rank}/calls.json"] = json.dumps(timed_calls(int(rank))).encode()
        stacks = [{"step": 14, "place": "train.py:12 load", "stack": ["train.py:12 load"]}]
        files[f"passes/plain/ranks/{rank}/slow_steps.json"] = json.dumps(stacks).encode()
        export = DATA / "nsys" / "gloo_w2" / f"rank_{rank}.sqlite"
        files[f"passes/nsys/ranks/{rank}/nsys.sqlite"] = export.read_bytes()
    summary = summarise(load(DATA / "runs" / "resnet_w2", options=Options(cache=False)))
    files["analysis/summary.json"] = json.dumps(summary).encode()
    return files


KINDS: dict[str, Callable[[], list[Recording]]] = {"traces": traces, "exports": exports, "runs": runs}
