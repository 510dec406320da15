"""Measures the time that rankscope adds to a step: its passes against a bare version of the same loop, in one run.

It compares (a) the plain pass with a loop without any timing, and (b) the torch pass with a bare torch.profiler with
the same options. The two variants of a pair run in alternating order, so that a drift of the machine affects both. It
prints the median and quartiles of the pairs' ratios. The first line compares the bare loop with itself: its difference
from 1 is the machine's noise, and a smaller overhead cannot be measured. Under torchrun the model is wrapped by DDP and
the Monitor exchanges what its ranks see. What timed collectives cost: benchmarks/unprofiled.py.

    python benchmarks/overhead.py --model gpt --size small --batch-size 8 --device cuda
    torchrun --nproc-per-node=2 benchmarks/overhead.py --model gpt --size small --batch-size 8 --device cuda
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from rankscope.conf import RankDir, RunConfig, parse_config
from rankscope.conf.contract import PassName, Phase
from rankscope.harness import Monitor
from rankscope.harness.faults.planted import Faults
from rankscope.harness.group.process_group import RankContext, join, leave
from rankscope.harness.observe.marks import Source
from rankscope.harness.observe.observer import Observer
from rankscope.harness.record import own_backward
from rankscope.harness.record.nvtx import TorchEmitter
from rankscope.harness.record.progress import Progress
from rankscope.harness.record.ranges import Ranges
from rankscope.harness.record.schedule import Plan
from rankscope.harness.record.step_timer import StepTimer
from rankscope.harness.record.steps import Steps, Window
from rankscope.harness.record.torch_profiler import StepProfiler
from rankscope.harness.reference.data import Batches, make_batches
from rankscope.harness.reference.loop import Loop
from rankscope.harness.reference.replica import Replica
from rankscope.harness.reference.train import Trainer

GOALS = {
    "bare loop": "1 except for noise",
    "plain pass": "at most 1.005",
    "recorder": "at most 1.005",
    "monitor": "at most 1.005",
    "torch pass": "at most 1.02",
}


class Observed(Observer):
    """A script in the plain pass, with one step per optimizer step."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self._steps = steps
        self._step = 0
        self.ranges = Ranges(
            steps.timer, annotate=False, nvtx=TorchEmitter() if steps.context.cuda else None, loose=True
        )
        steps.begin(0)

    def mark(self, source: Source) -> None:
        if source == "optimizer":
            self._steps.end(self._step)
            self._steps.advance(self._step)
            self._step = min(self._step + 1, self._steps.needed - 1)
            self._steps.begin(self._step)


class Bench:
    """One model on one device, with several ways to run its steps. Each returns the seconds of a block of steps."""

    def __init__(self, config: RunConfig, folder: Path, steps: int) -> None:
        self.config = config
        self.folder = folder
        self.steps = steps
        self.context: RankContext = join(config)
        self.faults = Faults(config, self.context)
        self.progress = Progress(RankDir(folder), 1 + steps)
        self.replica = Replica(config, self.context)
        self.trainer = Trainer(config, self.context, self.replica)
        self.batches: Batches = make_batches(config, self.context, self.replica.model.sample)
        self.plain_loop = self.loop(profiler=None)
        self.plain_loop.steps.start()
        self.progress.update("measure", 0)
        self.warm_up()

    def warm_up(self) -> None:
        for _ in range(2 * self.steps):
            self.bare_step()
        self.context.synchronize()

    def bare_step(self) -> None:
        trainer, replica = self.trainer, self.replica
        inputs, targets, _ = self.batches.next()
        inputs, targets = replica.to_device(inputs), replica.to_device(targets)
        with replica.autocast():
            loss = replica.model.loss(replica.module(inputs), targets)
        trainer.scaler.scale(loss).backward()
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()
        trainer.optimizer.zero_grad(set_to_none=True)

    def bare(self) -> float:
        return self.timed(lambda _: self.bare_step(), lambda _: None)

    def plain_pass(self) -> float:
        end = own_backward.observe(self.plain_loop.steps.timer.own_gradients)
        try:
            return self.timed(self.plain_loop.step, self.plain_loop.steps.advance)
        finally:
            end()

    def recorder(self) -> float:
        """Run the bare loop in the plain pass, with steps found from torch's calls, as `rankscope run script=` does."""
        observer = Observed(self.plain_loop.steps)
        observer.marks.install()
        end = own_backward.observe(self.plain_loop.steps.timer.own_gradients)
        try:
            return self.timed(lambda _: self.bare_step(), lambda _: None)
        finally:
            end()
            observer.marks.remove()
            self.plain_loop.steps.timer.close()

    def monitor(self) -> float:
        """Run the bare loop with a Monitor."""
        with tempfile.TemporaryDirectory() as folder:
            monitor = Monitor(folder)
            monitor.step()
            try:
                return self.timed(lambda _: self.bare_step(), lambda _: monitor.step())
            finally:
                monitor.close()

    def bare_profiler(self) -> float:
        options = self.config.profile
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.context.cuda else [])]
        with profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=self.steps, repeat=1),
            record_shapes=options.record_shapes,
            profile_memory=options.profile_memory,
            with_stack=options.with_stack,
            with_flops=options.with_flops,
        ) as profiler:
            return self.timed(lambda _: self.bare_step(), lambda _: profiler.step())

    def torch_pass(self) -> float:
        profiler = StepProfiler(self.config.profile, self.context, RankDir(self.folder), {}, keep_trace=False)
        loop = self.loop(profiler)
        loop.steps.start()
        seconds = self.timed(loop.step, loop.steps.advance)
        profiler.stop()
        return seconds

    def loop(self, profiler: StepProfiler | None) -> Loop:
        timer = StepTimer(self.context.device)
        kind: PassName = "plain" if profiler is None else "torch"
        phases: list[Phase] = ["active"] * (2 + self.steps)  # one more than is made: the window stays open

        def opened(window: Window) -> None:
            window.profiler = profiler

        steps = Steps(
            plans=[Plan(name=kind, kind=kind, phases=phases, profile=self.config.profile)],
            seconds=0,
            context=self.context,
            timer=timer,
            progress=self.progress,
            opened=opened,
            closed=lambda _: None,
        )
        return Loop(
            steps=steps,
            task=self.trainer,
            batches=self.batches,
            ranges=Ranges(timer, annotate=profiler is not None, nvtx=TorchEmitter() if self.context.cuda else None),
            faults=self.faults,
            log_every=self.config.log_every,
        )

    def timed(self, step: Callable[[int], None], advance: Callable[[int], None]) -> float:
        """Run a block and return seconds, from the start of step 1 (device idle) to the end of the last on the device.

        On a CPU this is the process's CPU time, because other processes disturb it far less than wall time.
        """
        now = time.perf_counter if self.context.cuda else time.process_time
        began = seconds = 0.0
        for index in range(1 + self.steps):
            if index == 1:
                self.context.synchronize()
                began = now()
            step(index)
            if index == self.steps:
                self.context.synchronize()
                seconds = now() - began
            advance(index)
        return seconds


def compare(name: str, bare: Callable[[], float], ours: Callable[[], float], blocks: int, steps: int) -> None:
    """Run `blocks` pairs in alternating order and print the ratios ours / bare."""
    ratios, times = [], []
    bare(), ours()  # the first run of each allocates memory
    for block in range(blocks):
        if block % 2:
            second = ours()
            first = bare()
        else:
            first = bare()
            second = ours()
        ratios.append(second / first)
        times.append(first / steps)
    low, median, high = statistics.quantiles(ratios, n=4)
    say(
        f"{name} / bare: median {median:.4f}, quartiles {low:.4f} to {high:.4f}, should be {GOALS[name]}; "
        f"bare step {statistics.median(times) * 1e3:.3f} ms, {blocks} pairs of {steps} steps"
    )


def say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--model", default="gpt")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--steps", type=int, default=10, help="steps in a block")
    parser.add_argument("--blocks", type=int, default=60, help="pairs of blocks")
    parser.add_argument("--record-shapes", action="store_true")
    options = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    config = parse_config(
        {
            "world_size": ranks,
            "ddp": {"enabled": ranks > 1},
            "device": options.device,
            "model": {"name": options.model, "size": options.size},
            "precision": {"name": options.precision},
            "batch_size": options.batch_size,
            "threads": options.threads,
            "profile": {"wait": 0, "warmup": 1, "active": options.steps, "record_shapes": options.record_shapes},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(config, Path(folder), options.steps)
        name = torch.cuda.get_device_name() if bench.context.cuda else f"CPU, {torch.get_num_threads()} threads"
        say(f"{options.model} {options.size}, batch {options.batch_size}, {options.precision}, {ranks} ranks, {name}")
        # The order matters: after torch.profiler was used once, the process's later CUDA launches are slower.
        compare("bare loop", bench.bare, bench.bare, options.blocks, options.steps)
        compare("plain pass", bench.bare, bench.plain_pass, options.blocks, options.steps)
        compare("recorder", bench.bare, bench.recorder, options.blocks, options.steps)
        compare("monitor", bench.bare, bench.monitor, options.blocks, options.steps)
        compare("torch pass", bench.bare_profiler, bench.torch_pass, options.blocks, options.steps)
        leave(bench.context)


if __name__ == "__main__":
    main()
