"""Plants known faults in a job without a profiler, and tests the rank, the cause and the gain that rankscope reports.

    torchrun --nproc-per-node=2 benchmarks/unprofiled.py record OUT     # any number of ranks, GPUs if there are some
    python benchmarks/unprofiled.py judge OUT                           # the table, from what was recorded

Each case is a job with its own model and loader in the same processes. The classes of `rankscope run` record its plain
and its timed window into run folders of the usual layout. The truth is the plain step of the case minus the plain step
of the clean case of the same repeat.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
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
# width, layers, batch, tokens
JOBS = {"gpu_bound": (1024, 8, 128, 128), "host_bound": (256, 8, 8, 64), "cpu": (64, 2, 4, 32)}


# --- recording ----------------------------------------------------------------------------------------------------


def record(out: Path, jobs: list[str], faults: list[str], repeats: range, steps: int) -> None:
    import torch
    import torch.distributed as dist

    from rankscope.harness.group.process_group import join
    from rankscope.harness.record.progress import reporting
    from rankscope.harness.record.recording import Recording
    from rankscope.harness.record.timed_collectives import keep_record

    rank = int(os.environ["RANK"])
    keep_record()
    context = None
    for job in jobs:
        for repeat in repeats:
            for fault in faults:
                run_dir = _folder(out / f"{job}-{fault}-{repeat}", rank, steps)
                if context is None:
                    context = join(_config(run_dir))
                context.barrier("case")
                recording = Recording(run_dir, ["plain", "timed"], rank)
                recording.rank_dir.path.mkdir(parents=True, exist_ok=True)
                with reporting(recording.rank_dir, of=recording.needed) as progress:
                    _Case(job, fault, context).run(recording.prepare(context, progress), recording)
                recording.save()
                if rank == 0:
                    print(f"{job} {fault} {repeat}", flush=True)
                gc.collect()
                if context.cuda:
                    torch.cuda.empty_cache()
    dist.barrier()
    dist.destroy_process_group()


def _folder(path: Path, rank: int, steps: int) -> Any:
    from rankscope.conf import RunDir, parse_config, save_config

    run_dir = RunDir(path)
    if rank == 0:
        path.mkdir(parents=True, exist_ok=True)
        settings = {
            "script": "unprofiled.py", "world_size": int(os.environ["WORLD_SIZE"]), "passes": ["plain", "timed"],
            "steps": steps, "timed_steps": steps, "seconds": 0, "warmup_steps": 11,
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


class _Case:
    """One training job with a fault in it."""

    def __init__(self, job: str, fault: str, context: Any) -> None:
        import torch
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        self.torch, self.context, self.fault = torch, context, fault
        width, layers, batch, tokens = JOBS[job]
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(context.device)
        ids = [context.device.index] if context.cuda else None
        self.model = DistributedDataParallel(model, device_ids=ids)
        self.optimizer = torch.optim.AdamW(model.parameters(), fused=context.cuda)
        mine = FAULTS[fault][0] == context.rank
        self.mine, self.late_ms = mine, 40.0 if job != "cpu" else 60.0
        length = 2 * tokens if fault == "longer_batches" and mine else tokens
        self.batches = [torch.randn(batch, length, width) for _ in range(4)]
        if context.cuda:
            self.batches = [item.pin_memory() for item in self.batches]
        self.large = torch.randn((64 if context.cuda else 8) << 20) if fault == "copy" and mine else None
        size, kind = (4096, torch.bfloat16) if context.cuda else (512, torch.float32)
        self.square = torch.randn(size, size, device=context.device, dtype=kind)
        self.second = fault == "two_at_once" and context.rank == 1
        self.garbage: list[list[int]] | None = (
            [[] for _ in range(1_000_000)] if fault == "garbage_collection" and mine else None
        )
        if fault == "compute_backward" and mine:
            model.layers[layers // 2].register_full_backward_hook(lambda *_: self.compute())

    def compute(self) -> None:
        for _ in range(40):  # 7 ms on an H100
            self.square @ self.square

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
        torch, mine, fault = self.torch, self.mine, self.fault
        with self.ranges.data_wait:
            batch = self.batches[number % 4]
            if mine and fault in ("loader", "two_at_once"):
                time.sleep(self.late_ms * 1e-3)
        with self.ranges.h2d:
            batch = batch.to(self.context.device, non_blocking=True)
            if self.large is not None:
                self.large.to(self.context.device) if self.context.cuda else self.large.clone()
        if mine and (fault == "host" or (fault == "late_every_5th" and number % 5 == 4)):
            time.sleep(self.late_ms * 1e-3)
        if self.garbage is not None:
            gc.collect()
        with self.ranges.forward, torch.autocast(self.context.device.type, torch.bfloat16, enabled=self.context.cuda):
            if (mine and fault == "compute_forward") or self.second:
                self.compute()
            loss = self.model(batch).square().mean()
        if mine and fault == "item_on_rank_0":
            loss.item()
        with self.ranges.backward:
            loss.backward()
        with self.ranges.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()
        if mine and fault == "checkpoint" and number % 7 == 6:
            self.save_checkpoint()
        if mine and fault == "evaluation" and number % 10 == 9:
            self.evaluate()

    def save_checkpoint(self) -> None:
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            self.torch.save([self.model.module.state_dict(), self.optimizer.state_dict()], file.name)

    def evaluate(self) -> None:
        with self.torch.no_grad():
            for batch in self.batches * 4:
                self.model.module(batch.to(self.context.device)).mean().item()


# --- judging ------------------------------------------------------------------------------------------------------


def judge(out: Path, as_json: Path | None) -> int:
    """Print a row for each case: planted, found, truth and promise in ms; return 1 if a row is wrong."""
    from rankscope.analysis import AnalysisError, load, summarise

    folders = sorted((path for path in out.iterdir() if (path / "run.json").exists()), key=lambda path: path.name)
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        try:
            found[folder.name] = summarise(load(folder))
        except AnalysisError as error:
            print(error, file=sys.stderr)
    rows = []
    for name, summary in found.items():
        job, fault, repeat = name.rsplit("-", 2)
        clean = found.get(f"{job}-none-{repeat}")
        if clean is not None and summary["throughput"] is not None:
            rows.append(_row(job, fault, summary, clean))
    for row in rows:
        print("| " + " | ".join(str(row[key]) for key in row) + " |")
    wrong = [row for row in rows if not (row["right"] and row["within"])]
    right = sum(row["right"] for row in rows)
    print(f"{len(rows)} cases; rank and cause right in {right}; also within 10 % or 0.3 ms in {len(rows) - len(wrong)}")
    cost = [row["timed / plain"] for row in rows if row["fault"] == "none"]
    print(f"timed / plain of clean jobs: {cost}")
    if as_json is not None:
        as_json.write_text(json.dumps(rows, indent=1))
    return 1 if wrong else 0


def _row(job: str, fault: str, summary: dict[str, Any], clean: dict[str, Any]) -> dict[str, Any]:
    rank, causes, kind = FAULTS[fault]
    late, slow = summary["stragglers"], summary["slow_steps"]
    rare = kind == "slow" or (kind == "either" and late["rank"] is None)
    # A fault of every step shows in the usual step. The mean of the clean job also has its own rare slow steps.
    step = "step_ms_p50" if kind == "late" else "step_ms_mean"
    truth = summary["throughput"][step] - clean["throughput"][step]
    gains = {item["id"]: item["recoverable_ms"] or 0.0 for item in summary["findings"]}
    straggler = next((gain for name, gain in gains.items() if name.startswith("straggler")), 0.0)
    if rare:
        said, cause = (None, None) if slow is None else (slow["ranks"], slow["place"])
        right, promised = said == [rank] and cause in causes, gains.get("slow_steps", 0.0)
        where = None if slow is None else slow["where"]
    else:
        said, cause, where, promised = late["rank"], late["cause"], late["part"], straggler
        costs_nothing = truth < max(0.3, 0.03 * clean["throughput"][step])
        right = (said is None and (rank is None or costs_nothing)) or (said == rank and cause in causes)
    within = abs(promised - truth) <= max(0.3, 0.1 * truth) or (promised == 0 and truth < 0.3) or fault == "none"
    return {
        "job": job, "fault": fault, "rank": rank, "said": said, "cause": cause, "where": where,
        "plain step ms": summary["throughput"][step], "truth ms": round(truth, 2),
        "promised ms": round(promised, 2), "right": right, "within": within,
        "timed / plain": _timed_ratio(summary),
    }  # fmt: skip


def _timed_ratio(summary: dict[str, Any]) -> float | None:
    ratio: float | None = summary["profiler_overhead"].get("timed")
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "judge"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", default="gpu_bound,host_bound")
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="number of the first repeat")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.what == "judge":
        if not options.out.is_dir():
            parser.error(f"{options.out}: no such folder; give the one that `record` wrote")
        return judge(options.out, options.json)
    repeats = range(options.first, options.first + options.repeats)
    record(options.out, options.jobs.split(","), options.faults.split(","), repeats, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
