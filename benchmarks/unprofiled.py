"""Plants known faults in a job without a profiler, and tests the rank, the cause and the gain that rankscope reports.

    torchrun --nproc-per-node=2 benchmarks/unprofiled.py record OUT     # any number of ranks, GPUs if there are some
    python benchmarks/unprofiled.py judge OUT                           # the table, from what was recorded
    python benchmarks/unprofiled.py steps OUT                           # whom the Monitor takes for late in each step

Each case is a job with its own model and loader in the same processes. Before it is recorded, blocks of steps with and
without its fault run in turn, timed by the clock of rank 0 only. Then the classes of `rankscope run` record the plain
and the timed window of the job with its fault into a run folder of the usual layout. The truth is its plain step minus
that of the clean blocks. Hosts vary, so it is only known to a range, from the smallest to the largest of this and of
the differences of the pairs of blocks. A gain is right if it is within 10 % or 0.3 ms of the truth, or in that range.

At its end `record` also measures what it costs to time collectives: blocks of the clean job before and after they are
timed (timing.json). Starts with many cases have ended with SIGSEGV (docs/validation.md), so give a start few:

    for fault in none host copy; do torchrun ... record OUT --faults $fault --first $repeat --repeats 1; done
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FAULTS = {
    # name: (rank, accepted causes, kind of finding)
    "none": (None, (None,), "late"),
    "compute_forward": (1, ("compute",), "late"),
    "compute_backward": (1, ("compute",), "late"),
    "longer_batches": (1, ("compute",), "late"),
    "host": (1, ("host",), "late"),
    "loader": (0, ("data",), "late"),
    "copy": (0, ("copy",), "late"),
    "checkpoint": (0, ("the host",), "slow"),
    "evaluation": (0, ("the host",), "slow"),
    "garbage_collection": (1, ("host",), "late"),
    "late_every_5th": (1, ("host", "the host"), "either"),
    "item_on_rank_0": (0, ("host", None), "late"),
    "two_at_once": (0, ("data",), "late"),
}
EVERY_STEP = (  # faults of one rank that make it late in every step
    "compute_forward", "compute_backward", "longer_batches", "host", "loader", "copy", "garbage_collection",
)  # fmt: skip
PERIODS = {"checkpoint": 7, "evaluation": 10, "late_every_5th": 5}  # a fault of some steps is in the last of so many
PLENTY = 12  # steps until DDP has read its own timers ten times and memory is allocated
PAIRS = 3  # of blocks with and without the fault


@dataclass(frozen=True)
class Job:
    """The sizes of a job and of its faults."""

    width: int
    layers: int
    batch: int
    tokens: int
    longer: int  # how often as many tokens a longer batch has
    products: int  # matrix products of a compute fault; on a GPU 40 take 7 ms on an H200
    late_ms: float  # of a sleep, in the host or the loader


JOBS = {
    "gpu_bound": Job(width=1024, layers=8, batch=128, tokens=128, longer=2, products=40, late_ms=40.0),
    # The GPU idles for most of a step, so a fault on it must be large to cost anything.
    "host_bound": Job(width=256, layers=8, batch=8, tokens=64, longer=64, products=200, late_ms=25.0),
    "cpu": Job(width=64, layers=2, batch=4, tokens=32, longer=2, products=16, late_ms=60.0),
}


# --- recording ----------------------------------------------------------------------------------------------------


def record(out: Path, jobs: list[str], faults: list[str], repeats: range, steps: int) -> None:
    import torch
    import torch.distributed as dist

    from rankscope.harness.group.process_group import join
    from rankscope.harness.record.timed_collectives import keep_record, why_not

    rank = int(os.environ["RANK"])
    keep_record()
    context = None
    for repeat in repeats:
        for job in jobs:
            for fault in faults:
                run_dir = _folder(out / f"{job}-{fault}-{repeat}", rank, steps)
                if context is None:
                    context = join(_config(run_dir))
                context.barrier("case")
                _record_case(run_dir, _Case(job, fault, context), rank)
                if rank == 0:
                    print(f"{job} {fault} {repeat}", flush=True)
                gc.collect()
                if context.cuda:
                    torch.cuda.empty_cache()
    if context is not None and why_not(context) is None and "none" in faults:
        _cost_of_timing(out / f"timing-{repeats.start}.json", jobs, context)
    dist.barrier()
    dist.destroy_process_group()


def _record_case(run_dir: Any, case: "_Case", rank: int) -> None:
    from rankscope.harness.record.progress import reporting
    from rankscope.harness.record.recording import Recording

    truth = case.truth()
    if rank == 0:
        (run_dir.path / "truth.json").write_text(json.dumps(truth))
    recording = Recording(run_dir, ["plain", "timed"], rank)
    recording.rank_dir.path.mkdir(parents=True, exist_ok=True)
    with reporting(recording.rank_dir, of=recording.needed) as progress:
        case.run(recording.prepare(case.context, progress), recording)
    recording.save()


def _cost_of_timing(file: Path, jobs: list[str], context: Any) -> None:
    """Run blocks of the clean job before and after its collectives are timed. Timing cannot be switched off again."""
    import torch.distributed as dist

    ratios: dict[str, list[float]] = {}
    for job in jobs:
        case = _Case(job, "none", context, dist.new_group())
        case.block(PLENTY, False)
        before = [case.block(10, False) for _ in range(12)]
        case.group._enable_collectives_timing()
        case.block(PLENTY, False)
        ratios[job] = [case.block(10, False) / bare for bare in before]
    if context.rank == 0:
        file.write_text(json.dumps(ratios))
        for job, values in ratios.items():
            print(f"{job}: timed / not timed, quartiles {statistics.quantiles(values)}", flush=True)


def _folder(path: Path, rank: int, steps: int) -> Any:
    from rankscope.conf import RunDir, parse_config, save_config

    run_dir = RunDir(path)
    if rank == 0:
        path.mkdir(parents=True, exist_ok=True)
        settings = {
            "script": "unprofiled.py", "world_size": int(os.environ["WORLD_SIZE"]), "passes": ["plain", "timed"],
            "steps": steps, "timed_steps": steps // 2, "seconds": 0, "warmup_steps": 2,
        }  # fmt: skip
        save_config(parse_config(settings), run_dir.config)
        run_dir.write_record(status="completed", overrides=[], world_size=settings["world_size"])
    else:
        while not run_dir.record.exists():
            time.sleep(0.01)
    return run_dir


def _config(run_dir: Any) -> Any:
    from rankscope.conf import load_config

    return load_config(run_dir.config)


_NO_RANGES = SimpleNamespace(**dict.fromkeys(("data_wait", "h2d", "forward", "backward", "optimizer"), nullcontext()))


class _Case:
    """One training job with a fault in it."""

    def __init__(self, job: str, fault: str, context: Any, group: Any = None) -> None:
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        self.torch, self.context, self.fault, self.group = torch, context, fault, group
        self.job = sizes = JOBS[job]
        self.on = True  # whether the fault is there
        self.ranges: Any = _NO_RANGES
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(sizes.width, 8, 4 * sizes.width, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, sizes.layers, enable_nested_tensor=False).to(context.device)
        ids = [context.device.index] if context.cuda else None
        self.model = DistributedDataParallel(model, device_ids=ids, process_group=group)
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=context.cuda)
        self.mine = mine = FAULTS[fault][0] == context.rank
        self.batches = self._batches(sizes.tokens)
        self.longer = self._batches(sizes.longer * sizes.tokens) if fault == "longer_batches" and mine else self.batches
        self.large = torch.randn((64 if context.cuda else 8) << 20) if fault == "copy" and mine else None
        size, kind = (4096, torch.bfloat16) if context.cuda else (512, torch.float32)
        self.square = torch.randn(size, size, device=context.device, dtype=kind)
        self.second = fault == "two_at_once" and context.rank == 1
        self.garbage: list[list[int]] | None = (
            [[] for _ in range(100_000)] if fault == "garbage_collection" and mine else None
        )
        if fault == "compute_backward" and mine:
            model.layers[sizes.layers // 2].register_full_backward_hook(lambda *_: self.compute())

    def _batches(self, tokens: int) -> list[Any]:
        made = [self.torch.randn(self.job.batch, tokens, self.job.width) for _ in range(4)]
        return [item.pin_memory() for item in made] if self.context.cuda else made

    def compute(self) -> None:
        if self.on:
            self.products()

    def products(self) -> None:
        for _ in range(self.job.products):
            self.square @ self.square

    def truth(self) -> dict[str, list[float]]:
        """Return the ms of a step in blocks with and without the fault, which run in turn."""
        period = PERIODS.get(self.fault, 5)
        steps = period * max(2, round(10 / period))
        found: dict[str, list[float]] = {"clean": [], "fault": []}
        self.block(PLENTY, False)
        self.block(period, True)
        for pair in range(PAIRS):
            for on in (False, True) if pair % 2 else (True, False):
                found["fault" if on else "clean"].append(self.block(steps, on) * 1e3)
        return found

    def block(self, steps: int, on: bool) -> float:
        """Run bare steps and return the seconds of one; all ranks together."""
        self.on, self.ranges = on, _NO_RANGES
        for number in (0, 1):
            self.step(number)
        self.context.synchronize()
        began = time.perf_counter()
        for number in range(steps):
            self.step(number)
        self.context.synchronize()
        self.on = True
        return (time.perf_counter() - began) / steps

    def run(self, steps: Any, recording: Any) -> None:
        self.ranges = recording.ranges()
        recording.begin()
        steps.start()
        number = 0
        while not steps.complete:
            steps.begin(number)
            self.step(number)
            steps.end(number)
            steps.advance(number)
            number += 1
        recording.info["samples_per_step"] = len(self.batches[0])
        recording.end()

    def step(self, number: int) -> None:
        torch, fault, mine = self.torch, self.fault, self.mine and self.on
        now = mine and number % PERIODS.get(fault, 1) == PERIODS.get(fault, 1) - 1
        with self.ranges.data_wait:
            batch = (self.longer if mine else self.batches)[number % 4]
            if mine and fault in ("loader", "two_at_once"):
                time.sleep(self.job.late_ms * 1e-3)
        with self.ranges.h2d:
            batch = batch.to(self.context.device, non_blocking=True)
            if mine and self.large is not None:
                self.large.to(self.context.device) if self.context.cuda else self.large.clone()
        if now and fault in ("host", "late_every_5th"):
            time.sleep(self.job.late_ms * 1e-3)
        if mine and self.garbage is not None:
            gc.collect()
        with self.ranges.forward, torch.autocast(self.context.device.type, torch.bfloat16, enabled=self.context.cuda):
            if self.second:
                self.products()  # also in clean blocks: the truth is what mending the other fault saves
            if mine and fault == "compute_forward":
                self.compute()
            loss = self.model(batch).square().mean()
        if mine and fault == "item_on_rank_0":
            loss.item()
        with self.ranges.backward:
            loss.backward()
        with self.ranges.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()
        if now and fault == "checkpoint":
            self.save_checkpoint()
        if now and fault == "evaluation":
            self.evaluate()

    def save_checkpoint(self) -> None:
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            self.torch.save(self.model.module.state_dict(), file.name)

    def evaluate(self) -> None:
        with self.torch.no_grad():
            for batch in self.batches * 4:
                self.model.module(batch.to(self.context.device)).mean().item()


# --- judging ------------------------------------------------------------------------------------------------------


def judge(out: Path, as_json: Path | None) -> int:
    """Print a row for each case: planted, found, truth and promise in ms; return 1 if a row is wrong."""
    from rankscope.analysis import AnalysisError, load, summarise

    folders = sorted((path for path in out.iterdir() if (path / "run.json").exists()), key=lambda path: path.name)
    rows = []
    for folder in folders:
        try:
            summary = summarise(load(folder))
            truth = json.loads((folder / "truth.json").read_text())
        except (AnalysisError, OSError) as error:
            print(f"{folder.name}: {error}", file=sys.stderr)
            continue
        if summary["throughput"] is not None:
            rows.append(_row(folder.name, summary, truth))
    for row in rows:
        print("| " + " | ".join(str(row[key]) for key in row) + " |")
    wrong = [row for row in rows if not (row["right"] and row["within"])]
    right = sum(row["right"] for row in rows)
    over = [row for row in rows if row["promised ms"] > max(0.0, row["to"] + 0.3, 1.1 * row["truth ms"])]
    print(
        f"{len(rows)} cases; rank and cause right in {right}, the gain too in {len(rows) - len(wrong)}; "
        f"more than was lost is promised in {len(over)}"
    )
    for file in sorted(out.glob("timing-*.json")):
        for job, ratios in json.loads(file.read_text()).items():
            low, median, high = statistics.quantiles(ratios)
            print(f"{job}: a step with timed collectives / without: {median:.4f} ({low:.4f} to {high:.4f})")
    if as_json is not None:
        as_json.write_text(json.dumps(rows, indent=1))
    return 1 if wrong else 0


def print_steps(out: Path) -> int:
    """Print in how many plain steps of each case the Monitor takes which rank for late, and by which cause."""
    import numpy as np

    from rankscope.conf.columns_file import read_columns
    from rankscope.conf.contract import STEP_COLUMNS
    from rankscope.harness.watch.late_rank import LATE
    from rankscope.harness.watch.parts import late_ranks, of_row, shares

    of_one_rank: Counter[str] = Counter()
    for folder in sorted(path for path in out.iterdir() if (path / "run.json").exists()):
        files = sorted(folder.glob("passes/plain/ranks/*/steps.json"))
        tables = [read_columns(file.with_suffix(".parquet"), STEP_COLUMNS).to_pylist() for file in files]
        parts = [[of_row(row) for row in rows if row["phase"] == "measured"] for rows in tables]
        ranks, found = late_ranks(np.array(parts).swapaxes(0, 1), LATE)
        late = [(rank, shares(excess)[0]) for rank, excess in zip(ranks.tolist(), found, strict=True) if rank >= 0]
        counts = Counter(f"rank {rank} {cause}" for rank, cause in late)
        print(
            f"{folder.name}: {len(ranks)} steps, {', '.join(f'{count} {who}' for who, count in counts.most_common())}"
        )
        fault = folder.name.rsplit("-", 2)[1]
        planted, causes, _ = FAULTS[fault]
        if fault in EVERY_STEP:
            right = [rank == planted and cause in causes for rank, cause in late]
            of_one_rank["steps"] += len(ranks)
            of_one_rank["late"] += len(late)
            of_one_rank["the rank"] += sum(rank == planted for rank, _ in late)
            of_one_rank["the rank and the cause"] += sum(right)
    print(f"a fault on one rank in every step: {dict(of_one_rank)}")
    return 0


def _row(name: str, summary: dict[str, Any], steps: dict[str, list[float]]) -> dict[str, Any]:
    fault = name.rsplit("-", 2)[1]
    rank, causes, kind = FAULTS[fault]
    late, slow = summary["stragglers"], summary["slow_steps"]
    rare = kind == "slow" or (kind == "either" and late["rank"] is None)
    clean = statistics.median(steps["clean"])
    truth = summary["throughput"]["step_ms_mean" if rare else "step_ms_p50"] - clean
    pairs = [truth, *(bad - good for bad, good in zip(steps["fault"], steps["clean"], strict=True))]
    gains = {item["id"]: item["recoverable_ms"] or 0.0 for item in summary["findings"]}
    straggler = next((gain for name, gain in gains.items() if name.startswith("straggler")), 0.0)
    little = max(0.3, 0.03 * clean)  # no finding need promise it
    if rare:
        said, cause = (None, None) if slow is None else (slow["ranks"], slow["place"])
        right, promised = said == [rank] and cause in causes, gains.get("slow_steps", 0.0)
        where = None if slow is None else slow["where"]
    else:
        said, cause, where, promised = late["rank"], late["cause"], late["part"], straggler
        right = (said is None and (rank is None or truth < little)) or (said == rank and cause in causes)
    near = abs(promised - truth) <= max(0.3, 0.1 * truth) or min(pairs) <= promised <= max(pairs)
    return {
        "case": name, "rank": rank, "said": said, "cause": cause, "where": where, "clean ms": round(clean, 2),
        "truth ms": round(truth, 2), "from": round(min(pairs), 2), "to": round(max(pairs), 2),
        "promised ms": round(promised, 2), "right": right,
        "within": near or (promised == 0 and min(pairs) < little) or fault == "none",
        "plain / bare": round(summary["throughput"]["step_ms_mean"] / statistics.median(steps["fault"]), 4),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "judge", "steps"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", default="gpu_bound,host_bound")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="number of the first repeat")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.what != "record" and not options.out.is_dir():
        parser.error(f"{options.out}: no such folder; give the one that `record` wrote")
    if options.what == "judge":
        return judge(options.out, options.json)
    if options.what == "steps":
        return print_steps(options.out)
    repeats = range(options.first, options.first + options.repeats)
    record(options.out, options.jobs.split(","), options.faults.split(","), repeats, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
