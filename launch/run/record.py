"""Records one point: claims a run folder, writes the inputs of the ranks, runs the passes, starts the analysis.

In: a validated configuration. Out: the run folder, with its status in every case, and the root cause if a pass failed.
"""

import errno
import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from rankscope.conf import RunConfig, RunDir, save_config
from rankscope.conf.columns_file import to_parquet
from rankscope.conf.contract import (
    KEY_AVERAGES,
    NO_NUMBERS,
    OK,
    PARTIAL,
    STEP_COLUMNS,
    TORCH_PASSES,
    WINDOWS,
    signal_status,
)
from rankscope.conf.files import read_json, write_json
from rankscope.conf.run_dir import Status
from rankscope.conf.version import VERSION
from rankscope.launch.run.distortion import distortion
from rankscope.launch.run.failure import Failure, Kind, failure_of, missing_file
from rankscope.launch.run.nodes import Node, enter
from rankscope.launch.run.nsys_reports import collect, of_pass_or_reports
from rankscope.launch.run.stage import Manifest, Stage, missing
from rankscope.launch.run.torchrun import own_ranks, run_start, torchrun_command
from rankscope.launch.system import slurm
from rankscope.launch.system.environment import environment, git_commit
from rankscope.launch.system.nsys_command import program
from rankscope.launch.system.processes import MARK, Interrupted, Stop, end, mark, start
from rankscope.launch.system.rank_progress import exported_bytes
from rankscope.launch.system.terminal import say
from rankscope.launch.system.torch_facts import TorchFacts

_RESERVE_BYTES = 64 * 1024  # freed when the run ends, so that its status can be written to a full disk
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ANALYSIS = ("-m", "rankscope.analysis")
_ANALYSIS_GRACE_S = 5.0
_MUCH_BYTES = 20_000_000  # of traces, whose analysis takes so long that the user is told of it
_log = logging.getLogger("rankscope.launch")


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run: its folder, the root cause if it failed, and the node of this launcher."""

    run_dir: RunDir
    failure: Failure | None
    node: Node


def record(config: RunConfig, overrides: Sequence[str], facts: TorchFacts, stop: Stop) -> Recorded:
    """Claim a run folder, or join the node that did, and record every pass into it.

    Writes the status of the run in every case. Raises `Interrupted` once no process of the run is left.
    """
    started = datetime.now().astimezone()
    node = enter(config, started, stop)
    with _logged(node):
        return Recorded(run_dir=node.run_dir, failure=_record(node, config, overrides, facts, stop, started), node=node)


def _record(
    node: Node, config: RunConfig, overrides: Sequence[str], facts: TorchFacts, stop: Stop, started: datetime
) -> Failure | None:
    passes: dict[str, Status] = {}
    failure: Failure | None = Failure(kind="launcher", message="the launcher failed")  # until a better cause is known
    run_dir = node.run_dir
    try:
        _write_inputs(node, config, overrides, facts, started)
        failure = node.agree(None, {}, stop)
        if failure is None:
            failure = _record_passes(node, config, stop, passes)
    except OSError as error:
        kind: Kind = "disk_full" if error.errno in _FULL else "launcher"
        failure = Failure(kind=kind, message=f"{error.filename or run_dir.path}: {error.strerror}")
    except Interrupted as interrupted:
        why = slurm.reason()
        text = f"interrupted by {interrupted}" + (f" from SLURM ({why})" if why is not None else "")
        failure = Failure(kind="interrupted", message=text)
        raise
    finally:
        if failure is not None:
            node.say(failure)
        if node.leads:
            finish(run_dir, failure, passes)
    return failure


def _write_inputs(
    node: Node, config: RunConfig, overrides: Sequence[str], facts: TorchFacts, started: datetime
) -> None:
    """Write the inputs of the ranks and the environment; the configuration comes last and marks them as complete."""
    run_dir, found = node.run_dir, environment(facts)
    if node.count > 1:
        node_dir = run_dir.node(node.number)
        node_dir.path.mkdir(parents=True, exist_ok=True)
        write_json(node_dir.info, found)
    if not node.leads:
        return
    run_dir.write_record(
        rankscope=VERSION,
        launch_id=node.launch_id,
        rdzv_endpoint=node.endpoint,
        status="running",
        overrides=list(overrides),
        start=started.astimezone(UTC).isoformat(),
        end=None,
        git_commit=git_commit(),
        passes={},
        failure=None,
    )
    _reserve(run_dir).write_bytes(bytes(_RESERVE_BYTES))
    write_json(run_dir.environment, found)
    save_config(config, run_dir.config)


def _record_passes(node: Node, config: RunConfig, stop: Stop, passes: dict[str, Status]) -> Failure | None:
    """Record start after start until one fails on any node; keeps the status of each pass in `passes`."""
    with closing(Stage(config, node)) as stage:
        waiting = starts(config)
        while waiting:
            names = waiting.pop(0)
            failure = _record_start(node, config, stage, names, stop, passes)
            if failure is not None:
                return failure
            left = [name for name in names if passes.get(name) == "running"]
            if left == names:
                return Failure(pass_name=names[0], kind="missing_file", message="nothing was recorded")
            if left:
                say(f"rankscope: the script ended before {', '.join(left)}: it is started once more")
                waiting.insert(0, left)
        if node.leads and (text := distorted(config, node.run_dir)) is not None:
            _log.info("%s", text)
            say(f"rankscope: {text}")
            return _record_start(node, config, stage, ["light"], stop, passes)
    return None


def _record_start(
    node: Node, config: RunConfig, stage: Stage, names: list[str], stop: Stop, passes: dict[str, Status]
) -> Failure | None:
    """Record the passes of one start. Those that its job did not reach keep the status `running`."""
    node.begin(names[0])
    passes |= dict.fromkeys(names, "running")
    command = torchrun_command(config, stage.run_dir, names, node.rendezvous)
    _log.info("start of %s: %s", ", ".join(names), shlex.join(command))
    if node.leads:
        node.run_dir.write_record(passes=passes)
    failure, reached = _run_start(config, stage.run_dir, names, command, stop)
    files: Manifest = {}
    for name in names:
        copied, failure = stage.collect(name, failure)
        files |= copied
    failure = node.agree(failure, files, stop)
    for name in names if failure is None and node.leads else []:
        failure = failure or missing(node.run_dir, name, node.said_files())
    passes |= dict.fromkeys(reached if failure is None else reached[:-1], "completed")
    if failure is None and _skipped_timed(node.run_dir, names, reached):
        del passes["timed"]  # its backend has no recorder, which rank.json says
    return failure


def _skipped_timed(run_dir: RunDir, names: list[str], reached: list[str]) -> bool:
    """Return whether the job got to the timed window and its ranks skipped it. Only a first window has files then."""
    if "timed" not in names or names.index(reached[-1]) < names.index("timed"):
        return False
    if names[0] != "timed":
        return "timed" not in reached
    infos = [rank.info for rank in run_dir.for_pass("timed").ranks() if rank.info.exists()]
    return not any(read_json(info).get("steps") for info in infos)


def _run_start(
    config: RunConfig, run_dir: RunDir, names: list[str], command: Sequence[str], stop: Stop
) -> tuple[Failure | None, list[str]]:
    """Run one start on this node; returns the root cause if it failed, and the passes that its job reached."""
    since = time.time()
    pass_dirs = [run_dir.for_pass(name) for name in names]
    ended = run_start(config, run_dir, names, command, stop)
    ranks = own_ranks(config, pass_dirs[0])
    for pass_dir in pass_dirs:
        for rank in pass_dir.ranks():
            to_parquet(rank.steps, STEP_COLUMNS)
            to_parquet(rank.key_averages, KEY_AVERAGES)
    failure = failure_of(pass_dirs[0], ended, ranks, since)
    if failure is None and (ended.cut is not None or ended.returncode):
        said = f"its ranks were ended: {ended.cut.message}" if ended.cut else "it failed after that"
        say(f"rankscope: {names[0]}: everything was recorded; {said} (logs: {pass_dirs[0].torchrun})")
    if names == ["nsys"]:  # also after a failure: the ranks that ended well have reports
        failure = of_pass_or_reports(failure, collect(config, pass_dirs[0], program(config), ranks, since))
    reached = [name for name in names if name == names[0] or any(run_dir.for_pass(name).ranks())]
    for name in reached[1:] if failure is None else []:
        failure = failure or missing_file(run_dir.for_pass(name), ranks, since)
    return failure, reached


def distorted(config: RunConfig, run_dir: RunDir) -> str | None:
    """Return why a light pass follows, or None: torch.profiler made the steps longer than `profile.light_above`."""
    limit, found = config.profile.light_above, distortion(run_dir)
    if limit is None or found is None or found <= limit or "light" in config.passes:
        return None
    return f"torch.profiler makes a step {found:.2f} times as long: one more pass records device activities only"


def starts(config: RunConfig) -> list[list[str]]:
    """Return the passes of each start, in order.

    The windows of one process share a start. Each repeat of the plain pass, and Nsight Systems, has its own.
    """
    windows = [name for name in WINDOWS if name in config.passes]
    found: list[list[str]] = [[name] for name in windows] if config.separate else [list(windows)] if windows else []
    found += [[f"plain-{number}"] for number in range(2, config.repeats + 1) if "plain" in config.passes]
    return found + [[name] for name in config.passes if name not in WINDOWS]


def finish(run_dir: RunDir, failure: Failure | None, passes: dict[str, Status]) -> None:
    """Write how the run ended. A pass that is still running gets the status of the run."""
    _reserve(run_dir).unlink(missing_ok=True)
    _log.info("%s", "completed" if failure is None else failure.text())
    status = status_of(failure)
    ended = {name: status if state == "running" else state for name, state in passes.items()}
    run_dir.finish(status, passes=ended, failure=msgspec.to_builtins(failure))


def status_of(failure: Failure | None) -> Status:
    if failure is None:
        return "completed"
    return failure.kind if failure.kind in ("interrupted", "cancelled") else "failed"


def analyse(run_dir: RunDir, stop: Stop, *, partial: bool = False, quiet: bool = False, brief: bool = False) -> int:
    """Start the analysis as a separate process, which prints its summary; returns its exit status."""
    wanted = {"--allow-partial": partial, "--quiet": quiet, "--brief": brief}
    flags = [flag for flag, on in wanted.items() if on]
    command = [sys.executable, "-P", *_ANALYSIS, str(run_dir.path), *flags]
    size = exported_bytes([run_dir.for_pass(name) for name in TORCH_PASSES])
    if size > _MUCH_BYTES:
        say(f"rankscope: reading {size / 1e6:.0f} MB of traces")
    process = start(command, {**os.environ, MARK: mark(run_dir.path)})
    try:
        status = stop.wait(process)
    except Interrupted as interrupted:
        if partial:  # run.json already has the cause of the failure
            raise
        message = f"interrupted by {interrupted} in the analysis; every pass is complete"
        run_dir.finish("interrupted", failure=msgspec.to_builtins(Failure(kind="interrupted", message=message)))
        raise
    finally:
        end(process, run_dir.path, _ANALYSIS_GRACE_S)
    if status not in (OK, NO_NUMBERS, PARTIAL):
        say(f"rankscope: the analysis ended with exit status {status}; try again: rankscope analyze {run_dir.path}")
    return status if status >= 0 else signal_status(-status)


@contextmanager
def _logged(node: Node) -> Iterator[None]:
    """Log to the launcher.log of this node. A full disk must not turn a log line into a traceback."""
    handler = logging.FileHandler(node.log, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    try:
        yield
    finally:
        _log.removeHandler(handler)
        handler.close()


def _reserve(run_dir: RunDir) -> Path:
    return run_dir.path / ".reserve"
