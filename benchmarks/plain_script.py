"""What an engineer would write by hand instead of rankscope, as a yardstick for benchmarks/commands.py: FOLDER.

Reads each trace with `json`, and prints per rank the length of the steps and how much of them the device spends in
compute, in communication and in communication that nothing hides. No collective is matched, and no rank is judged.
"""

import gzip
import json
import sys
from pathlib import Path

import numpy as np


def union(intervals: np.ndarray) -> np.ndarray:
    """Return disjoint intervals (n, 2) that cover the same time."""
    if not len(intervals):
        return intervals
    intervals = intervals[np.argsort(intervals[:, 0])]
    reach = np.maximum.accumulate(intervals[:, 1])
    first = np.append(True, intervals[1:, 0] > reach[:-1])
    last = np.append(first[1:], True)
    return np.stack([intervals[first, 0], reach[last]], axis=1)


def length(intervals: np.ndarray) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum()) if len(intervals) else 0.0


def main() -> None:
    for path in sorted(Path(sys.argv[1]).glob("rank*")):
        data = path.read_bytes()
        events = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
        steps: list[tuple[float, float]] = []
        compute: list[tuple[float, float]] = []
        communication: list[tuple[float, float]] = []
        for event in events:
            if event.get("ph") != "X":
                continue
            span = (event["ts"], event["ts"] + event["dur"])
            if event.get("cat") == "kernel":
                (communication if "nccl" in event["name"] else compute).append(span)
            elif event["name"].startswith("ProfilerStep#") and event.get("cat") == "user_annotation":
                steps.append(span)
        own, other = union(np.array(compute)), union(np.array(communication))
        together = length(union(np.concatenate([own, other]))) if len(other) else length(own)
        print(
            f"{path.name}: {len(steps)} steps, median {np.median([end - start for start, end in steps]):.1f} us; "
            f"compute {length(own):.0f} us, "
            f"communication {length(other):.0f} us, exposed {together - length(own):.0f} us"
        )


if __name__ == "__main__":
    main()
