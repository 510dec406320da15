"""One run of rankscope for benchmarks/ingest.py: TASK PATH fast|plain. Prints seconds of work, CPU time and memory."""

import json
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

TASK, PATH, FAST = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "fast"


def analyze(cache: bool) -> float:
    began = time.perf_counter()
    from rankscope.analysis import Options, load, summarise

    with tempfile.TemporaryDirectory() as folder:
        found = summarise(load(PATH, options=Options(cache=cache, fast=FAST)))
        (Path(folder) / "summary.json").write_text(json.dumps(found, indent=1, allow_nan=False))
    return time.perf_counter() - began


def read() -> float:
    from rankscope.analysis.read.kineto import reader as kineto

    if FAST:
        kineto.warm_up()
    began = time.perf_counter()
    kineto.read(PATH, fast=FAST)
    return time.perf_counter() - began


def limit(task: str) -> float:
    """Run only a part of the reading, and return its seconds."""
    import numpy as np

    from rankscope.analysis.read.decode import Codes
    from rankscope.analysis.read.kineto.events import EventReader
    from rankscope.analysis.read.kineto.fast.scanner import WINDOW, Scanner, kernels
    from rankscope.analysis.read.kineto.stream import Stream

    path = PATH.with_name(PATH.name + ".gz") if task == "gunzip" else PATH
    index = kernels()[0]
    positions, report = np.zeros(WINDOW + 64, np.int32), np.zeros(4, np.int64)
    window = np.full(WINDOW + 64, 32, np.uint8)
    codes: defaultdict[str, Codes] = defaultdict(Codes)
    began = time.perf_counter()
    if task == "scan only":
        for _ in EventReader(path, path.name, WINDOW, Scanner(codes)):
            pass
    else:
        for text in Stream(path, WINDOW):
            if task == "index only":
                window[: len(text)] = np.frombuffer(text, np.uint8)
                index(window.ctypes.data, len(text), positions.ctypes.data, report.ctypes.data)
    return time.perf_counter() - began


def main() -> None:
    if TASK in ("analyze", "analyze-cached"):
        seconds = analyze(TASK == "analyze-cached")
    elif TASK == "tables":
        seconds = read()
    else:
        seconds = limit(TASK)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(json.dumps({"work": seconds, "cpu": cpu, "rss": used[0].ru_maxrss * 1024, "scanner": "numba" in sys.modules}))


if __name__ == "__main__":
    main()
