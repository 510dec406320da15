"""`rankscope demo`: a healthy job and the same job with a planted fault, recorded and explained, in half a minute."""

import shlex
from collections.abc import Sequence

import click
import msgspec

from rankscope.conf.contract import OK
from rankscope.launch.cli import overrides_only, run_command
from rankscope.launch.configure.compose import compose
from rankscope.launch.configure.model_size import with_size
from rankscope.launch.configure.preflight import refuse
from rankscope.launch.point import HINT, report
from rankscope.launch.run.record import record
from rankscope.launch.system.processes import Stop
from rankscope.launch.system.terminal import say
from rankscope.launch.system.torch_facts import torch_facts


class Job(msgspec.Struct, frozen=True):
    """One job of the demo: what the user reads first, and what makes it different from the other."""

    name: str
    title: str
    overrides: tuple[str, ...] = ()


# Steps without a profiler are quick, so two seconds of them are enough for a verdict on a busy machine too.
COMMON = ("model=gpt", "world_size=2", "batch_size=4", "device=cpu", "seconds=2", "passes=[plain,torch]")
JOBS = (
    Job("demo-healthy", "A healthy job: two ranks train a small GPT on this machine's CPU."),
    Job(
        "demo-slow-rank",
        "The same job, but the loader of rank 1 needs 50 ms more for every batch.",
        ("+scenario=slow_rank_loader",),
    ),
)


@click.command("rankscope demo", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[KEY=VALUE]...")
def demo(words: tuple[str, ...]) -> int:
    """Record a healthy job and one with a planted fault, and show what rankscope says about each.

    KEY=VALUE: overrides of `rankscope run` for both jobs, for example device=cuda.
    """
    changes = overrides_only(words, "--help, the rest is key=value")
    facts = torch_facts()
    with Stop() as stop:
        for number, job in enumerate(JOBS, start=1):
            overrides = [*COMMON, f"name={job.name}", *job.overrides, *changes]
            say(f"{chr(10) if number > 1 else ''}{number} of {len(JOBS)}. {job.title}")
            say(f"   {shlex.join(['rankscope', 'run', *overrides])}")
            config = compose(overrides)
            refuse(config, facts)
            status = report(record(with_size(config, facts), overrides, facts, stop), stop, brief=True)
            if status != OK:
                return status
    say("\nOpen both pages: each finding there leads to its place in the timeline of all ranks.")
    say("Next, record your own script: rankscope run script=train.py world_size=2 -- --its --arguments")
    return OK


def main(argv: Sequence[str]) -> int:
    """Run the demo; returns the exit status of `rankscope run`."""
    return run_command(demo, argv, hint=HINT, prefix="rankscope")
