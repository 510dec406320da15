"""Prints a Markdown table of planted faults in real traces and of what rankscope finds.

    python benchmarks/validation.py FOLDER_OF_TRACES > table.md
    python benchmarks/validation.py --jobs 2000 > table.md        # random jobs with known truth instead

Each subfolder is one recording (rank0.json.gz, ...). The known answers come from the recording itself and from an
independent implementation, not from rankscope. A row without a known answer is marked "-".
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rankscope.analysis import AnalysisError, Options, load, summarise
from tests.analysis.simulated_jobs import answer, random_job, simulate

# folder: (planted, verdict, rank, cause, lateness in ms of the judged steps: low, high)
KNOWN: dict[str, tuple[str, str | None, int | None, str | None, float | None, float | None]] = {
    "big_baseline_w1": ("none", "none", None, None, None, None),
    "big_baseline_w2": ("none", "none", None, None, None, None),
    "big_baseline_w4": ("none", "none", None, None, 0, 0.6),
    "big_strong_w2": ("none", None, None, None, None, None),
    "big_strong_w4": ("none; late under the profiler", "persistent", 2, "host", 3.9, 6.0),
    "big_straggler_gpu_w4": ("5.7 ms of matmul on rank 3", "persistent", 3, "compute", 6.1, 7.7),
    "big_straggler_host_w4": ("10 ms sleep on rank 3, hidden", "none", None, None, 0, 0.83),
    "big_data_stall_rank0_w4": ("150 ms in the loader of rank 0", "persistent", 0, "data", 139, 150),
    "big_no_overlap_w4": ("one bucket", "none", None, None, 0, 1.13),
    "big_item_sync_w4": (".item() in every block", "none", None, None, 0.35, 1.84),
    "comm_bound_w1": ("none", "none", None, None, None, None),
    "comm_bound_w4": ("wide layers, batch 1", "none", None, None, 0, 0.08),
    "baseline_w1": ("none", "none", None, None, None, None),
    "baseline_w2": ("none", None, None, None, None, None),
    "straggler_gpu_w2": ("9 ms on rank 1, hidden by profiling", "persistent", 0, "host", None, None),
    "launch_bound_w1": ("none", "none", None, None, None, None),
    "launch_bound_w2": ("small kernels; late under the profiler", "persistent", 1, "host", 31, 45),
    "small_buckets_w2": ("tiny buckets", None, None, None, None, None),
    "grad_accum4_w2": ("4 micro-steps", None, None, None, None, None),
    "two_groups_w2": ("three interleaved groups", None, None, None, None, None),
    "fsdp2_w2": ("FSDP2", None, None, None, None, None),
    "cuda_graphs_w2": ("CUDA graphs", None, None, None, None, None),
    "warm_sync_w2": ("none; clean window", None, None, None, None, None),
}


def row(folder: Path) -> tuple[str, bool]:
    """Return one line of the table, and whether it agrees with the known answer."""
    planted, verdict, rank, cause, low, high = KNOWN.get(folder.name, ("?", None, None, None, None, None))
    try:
        analysis = load(folder)
    except AnalysisError as error:
        return f"| {folder.name} | {planted} | | {error} | | | | | **no** |", False
    summary = summarise(analysis)
    found, clock = summary["stragglers"], summary["alignment"]
    late = analysis.segments()
    worst = late[late["step"].isin(analysis.steps_judged)].groupby("step")["lateness_ns"].max() / 1e6
    span = f"{worst.min():.2f} to {worst.max():.2f}" if len(worst) else ""
    right = verdict is None or (found["verdict"], found["rank"], found["cause"]) == (verdict, rank, cause)
    if low is not None and high is not None:  # published to two digits
        right &= bool(worst.min() >= low - 0.005 * max(1, low) and worst.max() <= high + 0.005 * max(1, high))
    known = "-" if verdict is None else _words(verdict, rank, cause) + ("" if low is None else f", {low} to {high} ms")
    spread, bound = clock["end_spread_us"]["p50"], clock["error_bound_us"]
    cells = [
        folder.name,
        planted,
        known,
        _words(found["verdict"], found["rank"], found["cause"]),
        span,
        f"{sum(r['matched'] for r in summary['collectives'])} + {sum(r['unmatched'] for r in summary['collectives'])}",
        "" if spread is None else f"{spread:.0f} / {bound:.0f}",
        str(clock["causality_violations"]),
        "-" if verdict is None else ("yes" if right else "**no**"),
    ]
    return f"| {' | '.join(cells)} |", right


def _words(verdict: str, rank: int | None, cause: str | None) -> str:
    return verdict if rank is None else f"{verdict}, rank {rank}, {cause}"


def main(folder: Path) -> int:
    print(
        "| recording | planted | known | found | lateness, ms | calls matched + left | ends, us: spread / bound",
        end="",
    )
    print(" | causality | agrees |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    agrees = True
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        line, right = row(path)
        agrees &= right
        print(line)
    return 0 if agrees else 1


def random_jobs(count: int) -> int:
    """Print how often each answer is given, by what was planted; 1 if one is wrong."""
    found: Counter[tuple[str, str]] = Counter()
    for seed in range(count):
        plan = random_job(seed)
        with tempfile.TemporaryDirectory() as folder:
            simulate(plan, Path(folder))
            said = answer(plan, summarise(load(folder, options=Options(cache=False)))["stragglers"])
        found[plan.fault, said] += 1
        if said.startswith("wrong"):
            print(f"seed {seed}: {said}", file=sys.stderr)
    answers = sorted({said for _, said in found}, key=lambda said: (said.startswith("wrong"), said))
    print(f"| planted | jobs | {' | '.join(answers)} |\n| --- | ---: |{' ---: |' * len(answers)}")
    for fault in sorted({fault for fault, _ in found}):
        counts = [found[fault, said] for said in answers]
        print(f"| {fault} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    totals = [sum(found[fault, said] for fault in {fault for fault, _ in found}) for said in answers]
    print(f"| all | {sum(totals)} | {' | '.join(map(str, totals))} |")
    return int(any(said.startswith("wrong") for said in answers))


if __name__ == "__main__":
    sys.exit(random_jobs(int(sys.argv[2])) if sys.argv[1] == "--jobs" else main(Path(sys.argv[1])))
