"""Finds slow hosts in simulated jobs whose hosts' clocks differ by seconds and drift. All planted hosts must be found.

    python benchmarks/hosts.py                   # 1,024 ranks, 8 per host, three faults on one to three hosts
    python benchmarks/hosts.py --ranks 256

Prints one row per job. The exit status is 1 if a planted host was missed or another host was named.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from rankscope.analysis import Options, load, summarise
from tests.analysis.simulated_jobs import MS, Plan, simulate


def job(ranks: int, each: int, fault: str, hosts: frozenset[int], seed: int) -> Plan:
    plan = Plan(world=ranks, steps=4, buckets=3, seed=seed, fault=fault, fault_ns=8 * MS, ranks_a_host=each)
    plan.fault_hosts = hosts
    plan.end_jitter_ns = 20_000
    rng = np.random.default_rng(seed)
    clocks = rng.integers(-5000, 5000, size=ranks // each) * MS
    drifts = rng.uniform(-30e-6, 30e-6, size=ranks // each)
    plan.offsets_ns = {rank: int(clocks[rank // each]) for rank in range(ranks)}
    plan.drifts = {rank: float(drifts[rank // each]) for rank in range(ranks)}
    return plan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--each", type=int, default=8, help="ranks per host")
    arguments = parser.parse_args()
    last = arguments.ranks // arguments.each - 1
    planted = [("none", []), ("compute", [last // 2]), ("data", [0, last]), ("host", [1, last // 3, last - 1])]
    wrong = 0
    print("| planted | on hosts | found | late by (ms) | clock: p95 residual (us) | analysis (s) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for seed, (fault, hosts) in enumerate(planted):
        with tempfile.TemporaryDirectory() as folder:
            simulate(job(arguments.ranks, arguments.each, fault, frozenset(hosts), seed), Path(folder))
            began = time.perf_counter()
            summary = summarise(load(folder, options=Options(cache=False)))
            took = time.perf_counter() - began
        late = {int(row["host"].removeprefix("h")): row["lateness_ms"] for row in summary["hosts"] if row["late"]}
        wrong += sorted(late) != sorted(hosts)
        amounts = ", ".join(f"{amount:.2f}" for amount in late.values()) or "-"
        residual = summary["alignment"]["residual_us"]["p95"]
        names = [str(sorted(found) or "-") for found in (hosts, late)]
        print(f"| {fault}, 8 ms | {names[0]} | {names[1]} | {amounts} | {residual:.1f} | {took:.1f} |")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
