"""Tests whether the Monitor names a rank that becomes slow half-way, and is silent without a fault. Prints JSON.

    torchrun --nproc-per-node=2 benchmarks/monitor.py --seconds 180 --fault compute --ms 10
    torchrun --nproc-per-node=2 benchmarks/monitor.py --seconds 180 --fault none

The script trains a reference model under DDP for about `--seconds` at its first speed. Half-way, one rank becomes
slower by `--ms` per step: by matrix products in its forward pass, by sleeping between the batch and the forward pass,
or in its loader.
Expected: the right rank and cause within 20 steps, the same verdict in the trace of the window that the Monitor opens,
and no event before the fault.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rankscope.conf import RunConfig, parse_config
from rankscope.harness import Monitor
from rankscope.harness.group.process_group import RankContext, join, leave
from rankscope.harness.reference.data import make_batches
from rankscope.harness.reference.replica import Replica
from rankscope.harness.reference.train import make_optimizer

WARMUP = 50
CAUSES = {"compute": "compute", "host": "host", "data": "data"}


def busy(context: RankContext, ms: float) -> Callable[[], None]:
    """Return a function that keeps the device busy for about `ms`."""
    side = 2048 if context.cuda else 128
    matrix = torch.randn(side, side, device=context.device)

    def work(count: int) -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    work(20)
    context.synchronize()
    began = time.perf_counter()
    work(100)
    context.synchronize()
    each = (time.perf_counter() - began) / 100
    return lambda: work(max(1, round(ms * 1e-3 / each)))


class Trial:
    """One rank of the trial."""

    def __init__(self, config: RunConfig, options: argparse.Namespace) -> None:
        self.context = join(config)
        self.options = options
        self.replica = Replica(config, self.context)
        self.optimizer = make_optimizer(config.optimizer, self.replica.raw)
        self.batches = make_batches(config, self.context, self.replica.model.sample)
        self.extra = busy(self.context, options.ms)
        self.fault_step = 1 << 60

    def loader(self) -> Any:
        step = 0
        while True:
            if self.is_bad("data", step):
                time.sleep(self.options.ms * 1e-3)
            yield self.batches.next()[:2]
            step += 1

    def is_bad(self, fault: str, step: int) -> bool:
        mine = self.context.rank == self.options.rank and fault == self.options.fault
        return mine and step >= self.fault_step

    def step(self, step: int, batch: Any, monitor: Monitor) -> None:
        replica = self.replica
        with monitor.h2d:
            inputs, targets = (replica.to_device(item) for item in batch)
        if self.is_bad("host", step):
            time.sleep(self.options.ms * 1e-3)
        with monitor.forward:
            if self.is_bad("compute", step):
                self.extra()
            with replica.autocast():
                loss = replica.model.loss(replica.module(inputs), targets)
        with monitor.backward:
            loss.backward()
        with monitor.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            loss.item()  # most loops do this to print the loss
        monitor.step()

    def run(self) -> dict[str, Any]:
        """Train, and return the Monitor's events."""
        monitor = Monitor(self.options.folder, trace_steps=4, max_windows=4)
        total, began = 1 << 60, time.perf_counter()
        for step, batch in enumerate(monitor.loader(self.loader())):
            if step == total:
                break
            self.step(step, batch, monitor)
            if step + 1 == WARMUP:
                self.context.synchronize()
                began = time.perf_counter()
            if step + 1 == 2 * WARMUP:
                total = self.agreed_steps(time.perf_counter() - began)
                self.fault_step = total // 2
        took = time.perf_counter() - began
        monitor.close()
        events = [event.to_json() for event in monitor.events]
        return {"steps": total, "seconds": round(took, 1), "events": events, "folder": str(monitor.folder)}

    def agreed_steps(self, seconds: float) -> int:
        """Return the number of steps of the complete trial, the same on every rank."""
        self.context.synchronize()
        slowest = torch.tensor(seconds, device=self.context.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return int(2 * WARMUP + self.options.seconds / (float(slowest) / WARMUP))


def verdict(found: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the planted fault, the events, and whether they are right."""
    planted = None if options.fault == "none" else found["steps"] // 2
    early = [event for event in found["events"] if planted is None or event["step"] < planted]
    later = found["events"][len(early) :]
    late = next((event for event in later if event["event"] == "late_rank"), None)
    result = found | {"fault": options.fault, "planted_step": planted, "early_events": len(early), "window": None}
    if planted is None:
        return result | {"ok": not found["events"]}
    window = None if late is None else first_window(Path(found["folder"]), late["step"])
    if window is not None:
        command = [sys.executable, "-m", "rankscope.conf.cli", "analyze", str(window), "--json", "-"]
        said = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["stragglers"]
        said = {key: said[key] for key in ("verdict", "rank", "cause", "lateness_ms", "steps_late", "steps_judged")}
        result["window"] = {"path": str(window), **said}
    named = late is not None and (late["rank"], late["cause"]) == (options.rank, CAUSES[options.fault])
    delay = None if late is None else late["step"] - planted
    seen = result["window"] is not None and result["window"]["rank"] == options.rank
    same = seen and result["window"]["cause"] == CAUSES[options.fault]
    right = named and delay is not None and delay <= 20 and not early
    return result | {"delay_steps": delay, "named_right": named, "window_agrees": same, "ok": right and same}


def first_window(folder: Path, after: int) -> Path | None:
    """Return the first trace window that opened after a step."""
    steps = sorted(int(path.name) for path in folder.glob("windows/*") if int(path.name) > after)
    return folder / "windows" / str(steps[0]) if steps else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--fault", choices=["none", *CAUSES], default="compute")
    parser.add_argument("--ms", type=float, default=10)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--model", default="gpt")
    parser.add_argument("--size", default="small")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--folder", default="runs")
    parser.add_argument("--out", type=Path, help="a file for the JSON as well")
    options = parser.parse_args()
    config = parse_config(
        {
            "world_size": int(os.environ["WORLD_SIZE"]),
            "device": options.device,
            "model": {"name": options.model, "size": options.size},
            "precision": {"name": options.precision},
            "batch_size": options.batch_size,
            "threads": 1 if options.device == "cpu" else 0,
        }
    )
    trial = Trial(config, options)
    found = trial.run()
    if trial.context.rank == 0:
        said = json.dumps(verdict(found, options), indent=1)
        print(said)
        if options.out is not None:
            options.out.write_text(said + "\n")
    leave(trial.context)


if __name__ == "__main__":
    main()
