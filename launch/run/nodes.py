"""The launchers of one run on several nodes: every node runs the same command, and they meet in the run folder.

The node that creates the folder leads: it writes the inputs and the status of the run, and analyses. The others join
after checking that they have the same configuration. At the end of each stage (`join`, then every pass) each node
reports its result and waits for the others. So all nodes go on, or all stop with the same root cause.
"""

import json
import os
import random
import socket
import tempfile
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from rankscope.conf import ConfigError, RunConfig, RunDir, RunDirError, load_config
from rankscope.conf.files import write_json
from rankscope.conf.host import host_name
from rankscope.launch.run.failure import Failure, is_consequence
from rankscope.launch.system.processes import POLL_S, Stop

JOIN = "join"  # the stage before the first pass
_PORTS = range(29400, 30400)  # below the ports that a system assigns to clients


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a node reports at the end of a stage: its failure, if any, and the files it copied to the run folder."""

    host: str
    time: float
    failure: Failure | None = None
    files: dict[str, tuple[int, str]] = {}  # path in the run folder -> bytes, sha256


class Node:
    """This launcher among the launchers of the run. With one node it waits for nobody."""

    def __init__(self, run_dir: RunDir, config: RunConfig, number: int, launch_id: str, endpoint: str) -> None:
        self.run_dir = run_dir
        self.number = number
        self.count = config.launch.nnodes
        self.launch_id = launch_id
        self.endpoint = endpoint  # where the torchruns of all nodes meet
        self._chosen = config.launch.rdzv_endpoint == "auto"
        self._join_s = config.launch.join_timeout_s
        self._others_s = config.launch.node_timeout_s
        self._stage = JOIN
        self._inherits = False

    @property
    def leads(self) -> bool:
        """Whether this node writes the run's status and analyses: the first node, or the one that took over from it."""
        return self.number == 0 or self._inherits

    @property
    def rendezvous(self) -> list[str]:
        """torchrun's options for the meeting point of the nodes."""
        options = [f"--rdzv-endpoint={self.endpoint}"]
        if self.count > 1 and self._chosen:  # otherwise torchrun compares the name with those of its host
            options.append(f"--rdzv-conf=is_host={self.leads}")
        if self.count > 1 and "SLURMD_NODENAME" in os.environ:  # a name that the other nodes can resolve
            options.append(f"--local-addr={host_name()}")
        return options

    @property
    def log(self) -> Path:
        """This launcher's log."""
        return self.run_dir.log if self.leads else self.run_dir.node(self.number).path / self.run_dir.log.name

    def begin(self, stage: str) -> None:
        """Enter a stage, about which `say` then reports."""
        self._stage = stage

    def say(self, failure: Failure | None, files: dict[str, tuple[int, str]] | None = None) -> None:
        """Report to the other nodes how the stage ended here. Only the first report of a stage counts."""
        path = self.run_dir.node(self.number).said(self._stage)
        if self.count > 1 and not path.exists():
            said = Said(host=host_name(), time=time.time(), failure=failure, files=files or {})
            write_json(path, msgspec.to_builtins(said))

    def agree(self, failure: Failure | None, files: dict[str, tuple[int, str]], stop: Stop) -> Failure | None:
        """Report how the stage ended here, wait for the other nodes, and return the root cause on any node."""
        if self.count == 1:
            return failure
        self.say(failure, files)
        limit_s = self._join_s if self._stage == JOIN else self._others_s
        deadline = time.monotonic() + limit_s
        while len(found := self._heard()) < self.count and time.monotonic() < deadline:
            stop.check()
            time.sleep(POLL_S)
        failures = [said.failure for _, said in sorted(found.items(), key=_by_time) if said.failure is not None]
        failures.sort(key=is_consequence)
        silent = sorted(set(range(self.count)) - set(found))
        if 0 in silent and self.number == min(found):  # somebody must write the final status
            self._inherits = True
        if silent and (not failures or is_consequence(failures[0])):
            return self._lost(silent, found, limit_s)
        return failures[0] if failures else None

    def _heard(self) -> dict[int, Said]:
        found = {}
        for number in range(self.count):
            try:
                text = self.run_dir.node(number).said(self._stage).read_bytes()
                found[number] = msgspec.json.decode(text, type=Said)
            except (OSError, msgspec.DecodeError):
                continue
        return found

    def _lost(self, silent: list[int], heard: dict[int, Said], limit_s: float) -> Failure:
        here = ", ".join(said.host for said in heard.values())
        if self._stage == JOIN:
            text = (
                f"{len(heard)} of {self.count} nodes joined within launch.join_timeout_s={limit_s:g}: {here}; "
                "start the same command on every node"
            )
            return Failure(kind="missing_node", message=text)
        names = ", ".join(f"node {number} ({self._host(number)})" for number in silent)
        text = f"{names} did not report within launch.node_timeout_s={limit_s:g} after this node's ranks had ended"
        return Failure(pass_name=self._stage, kind="lost_node", message=text)

    def _host(self, number: int) -> str:
        try:
            return str(json.loads(self.run_dir.node(number).info.read_text())["host"])
        except (OSError, ValueError, KeyError):
            return "unknown host"

    def said_files(self) -> dict[str, tuple[int, str]]:
        """Return the files that the nodes copied to the run folder in this stage, by their reports."""
        return {name: entry for said in self._heard().values() for name, entry in said.files.items()}


def enter(config: RunConfig, started: datetime, stop: Stop) -> Node:
    """Claim the run folder, or join the node that did; raises `RunDirError` or `ConfigError` with one line."""
    exact = Path(config.run_dir) if config.run_dir is not None else None
    launch_id = uuid.uuid4().hex[:12]
    try:
        run_dir = RunDir.claim(Path(config.runs_dir), config.name, started, exact)
        return Node(run_dir, config, 0, launch_id, _endpoint(config))
    except RunDirError:
        if config.launch.nnodes == 1 or exact is None:
            raise
    run_dir = RunDir(exact)
    record = _leaders_record(run_dir, config, stop)
    _same(config, load_config(run_dir.config))
    for number in range(1, config.launch.nnodes):
        try:
            run_dir.node(number).path.mkdir()
        except FileExistsError:
            continue
        return Node(run_dir, config, number, record["launch_id"], record["rdzv_endpoint"])
    raise RunDirError(f"{exact}: all {config.launch.nnodes} nodes have joined already; give another run_dir")


def _endpoint(config: RunConfig) -> str:
    """Return the meeting point of the nodes: the configured one, otherwise a free port on this host."""
    if config.launch.rdzv_endpoint != "auto":
        return config.launch.rdzv_endpoint
    return "localhost:0" if config.launch.nnodes == 1 else f"{host_name()}:{_free_port()}"


def _free_port() -> int:
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    raise ConfigError(f"launch.rdzv_endpoint=auto: no port of {_PORTS} is free here; give host:port")


def _leaders_record(run_dir: RunDir, config: RunConfig, stop: Stop) -> dict[str, Any]:
    """Wait for the record of the node that claimed the folder; raises `RunDirError` for a folder of an earlier run."""
    deadline = time.monotonic() + config.launch.join_timeout_s
    while time.monotonic() < deadline:
        stop.check()
        record = run_dir.read_record() if run_dir.record.exists() else {}
        if record.get("launch_id") and run_dir.config.exists():
            if record.get("status") == "running" and _age_s(run_dir.record) < config.launch.join_timeout_s:
                return record
            break
        time.sleep(POLL_S)
    raise RunDirError(f"{run_dir.path}: exists already, and no run there waits for nodes; give another run_dir")


def _age_s(path: Path) -> float:
    """Return a file's age (s) by the clock of its file system, which may differ from the clock of this host."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".age-") as now:
        return os.stat(now.name).st_mtime - path.stat().st_mtime


def _same(mine: RunConfig, theirs: RunConfig) -> None:
    if mine == theirs:
        return
    a, b = msgspec.to_builtins(mine), msgspec.to_builtins(theirs)
    names = ", ".join(f"{key}={a[key]} (the first node: {b[key]})" for key in a if a[key] != b[key])
    raise ConfigError(f"{names}: every node of a run must be given the same configuration")


def _by_time(item: tuple[int, Said]) -> tuple[float, int]:
    failure = item[1].failure
    return (item[1].time if failure is not None else 0.0), item[0]
