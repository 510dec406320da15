"""One point on this machine: a configuration in; a recorded and analysed run folder, and an exit status, out."""

from collections.abc import Sequence

from rankscope.conf import RunConfig
from rankscope.conf.contract import NO_NUMBERS, OK, PARTIAL, TORCH_PASSES
from rankscope.launch.configure.model_size import with_size
from rankscope.launch.configure.preflight import refuse, shared_cores
from rankscope.launch.run.record import Recorded, analyse, record
from rankscope.launch.system.processes import Stop
from rankscope.launch.system.terminal import say
from rankscope.launch.system.torch_facts import torch_facts

HINT = "give another runs_dir or make room"  # about a folder that the system refuses


def run_here(config: RunConfig, overrides: Sequence[str], stop: Stop) -> int:
    """Record and analyse one run on this machine; raises `ConfigError` before anything starts if it cannot run."""
    facts = torch_facts()
    stop.check()
    refuse(config, facts)
    if (shared := shared_cores(config, facts)) is not None:
        say(f"rankscope: {shared}")
    config = with_size(config, facts)
    return report(record(config, overrides, facts, stop), stop)


def report(recorded: Recorded, stop: Stop, *, brief: bool = False) -> int:
    """Print what failed, analyse what there is, and return the exit status. Of several nodes the first analyses."""
    run_dir, failure, node = recorded.run_dir, recorded.failure, recorded.node
    if failure is not None:
        say(failure.text())
    if not node.leads:
        say(f"rankscope: node {node.number} of {node.count} is done; the first node analyses {run_dir.path}")
        return OK if failure is None else NO_NUMBERS
    if failure is None:
        return analyse(run_dir, stop, brief=brief)
    ranks = [rank for name in TORCH_PASSES for rank in run_dir.for_pass(name).ranks()]
    traces = [rank for rank in ranks if rank.trace.exists() and rank.info.exists()]
    traces = traces or [rank for rank in run_dir.for_pass("nsys").ranks() if rank.nsys_export.exists()]
    found = bool(traces) or "completed" in run_dir.read_record().get("passes", {}).values()
    status = analyse(run_dir, stop, partial=True) if found else NO_NUMBERS
    say(f"rankscope: status failed; what was recorded is kept in {run_dir.path}")
    return PARTIAL if found and status in (OK, PARTIAL) else NO_NUMBERS
