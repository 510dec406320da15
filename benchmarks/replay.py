"""How well the replay holds: FOLDERS of recordings, each replayed, and the predictions whose truth was measured.

    python benchmarks/replay.py tests/data/traces/* --shared ../shared/traces

The first table lists each recording: its step, the step that the recorded work alone gives (without idle time that
nothing explains), and how long building and replaying took. The second compares predictions with steps that were
measured without a profiler, in jobs that have the change (`truth.json` beside the traces).
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from rankscope.analysis import load
from rankscope.analysis.core.notices import AnalysisError
from rankscope.analysis.options import Options
from rankscope.analysis.replay.build import build
from rankscope.analysis.replay.predict import predict

NODE = Path(__file__).parents[1] / "tests" / "data" / "ceilings" / "h100_w4.json"  # of the recordings
# (recorded job, changes, job that has them)
PREDICTED = (
    ("big_straggler_gpu_w4", ("rank3.compute=median",), "big_baseline_w4"),
    ("big_data_stall_rank0_w4", ("rank0.loader=median",), "big_baseline_w4"),
    ("big_data_stall_rank0_w4", ("rank0.loader=instant",), "big_baseline_w4"),
    ("big_straggler_host_w4", ("rank3.host=median",), "big_baseline_w4"),
    ("big_item_sync_w4", ("sync=instant",), "big_baseline_w4"),
    ("big_baseline_w2", ("ranks=4",), "big_baseline_w4"),
    ("big_baseline_w4", ("ranks=2",), "big_baseline_w2"),
    ("big_baseline_w1", ("ranks=4", "gradient_mb=373.6"), "big_baseline_w4"),
    ("comm_bound_w1", ("ranks=4", "gradient_mb=1747.4"), "comm_bound_w4"),
    ("big_strong_w2", ("ranks=4", "compute*0.5"), "big_strong_w4"),
    ("straggler_gpu_w2", ("rank1.compute=median",), "baseline_w2"),
)


def truth(folder: Path) -> float:
    """Return the median step without a profiler (ms), mean of the ranks."""
    return float(statistics.mean(json.loads((folder / "truth.json").read_text())["unprofiled"]["step_ms"]))


def replayed(folders: list[Path]) -> None:
    print("| recording | ranks | records | step, ms | from the work alone, ms | error | s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    errors = []
    for folder in folders:
        try:
            recording = load(folder)
            began = time.perf_counter()
            graph = build(recording)
            alone = graph.explained_ns()
        except AnalysisError as error:
            print(f"| {folder.name} | | | | | {str(error).rpartition(': ')[2]} | |")
            continue
        took = time.perf_counter() - began
        step = graph.step_ns(graph.time)
        errors.append(abs(alone / step - 1))
        numbers = f"{len(recording.ranks)} | {len(graph.records.rank):,} | {step / 1e6:.3f} | {alone / 1e6:.3f}"
        print(f"| {folder.name} | {numbers} | {alone / step - 1:.2%} | {took:.2f} |")
    print(f"\nmean error {statistics.mean(errors):.2%}, largest {max(errors):.2%}, {len(errors)} recordings\n")


def predictions(shared: Path) -> None:
    print(
        "| recorded | changes | plain step, ms | predicted, ms | measured, ms | error |\n|---|---|---:|---:|---:|---:|"
    )
    errors = []
    for name, changes, then in PREDICTED:
        plain, measured = truth(shared / name), truth(shared / then)
        found = predict(load(shared / name, options=Options(ceilings=NODE)), changes, plain)
        errors.append(abs(found.predicted_ms / measured - 1))
        interval = f"{found.low_ms:.2f} to {found.high_ms:.2f}"
        numbers = f"{plain:.2f} | {found.predicted_ms:.2f} ({interval}) | {measured:.2f}"
        print(f"| {name} | `{' '.join(changes)}` | {numbers} | {found.predicted_ms / measured - 1:+.1%} |")
    print(
        f"\nmedian error {statistics.median(errors):.1%}, {sum(e <= 0.05 for e in errors)} of {len(errors)} within 5 %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--shared", type=Path, help="recordings with truth.json, for the second table")
    arguments = parser.parse_args()
    replayed([folder for folder in arguments.folders if folder.is_dir()])
    if arguments.shared:
        predictions(arguments.shared)


if __name__ == "__main__":
    main()
