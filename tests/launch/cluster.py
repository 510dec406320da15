"""A real SLURM on this machine: two nodes in the namespaces of hosts.py, accounting, all of it in one folder.

Nothing of the machine's own SLURM, munge or MariaDB is touched: daemons, keys, sockets and data are the cluster's own.
"""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .run.hosts import Hosts, two_hosts

_FILES = Path(__file__).parent / "slurm"
_START_S, _STOP_S = 180.0, 5.0


class Failed(Exception):
    """The cluster cannot be had here; the message says why."""


class Cluster:
    """A running cluster; `run` and `start` put a command on its first host, where users log in."""

    def __init__(self, folder: Path, hosts: Hosts) -> None:
        self.folder = folder
        self.hosts = hosts
        self._daemons: list[subprocess.Popen[bytes]] = []

    def command(self, number: int, *command: str) -> list[str]:
        """Return `command` as it runs on a host, with this cluster's configuration."""
        return self.hosts.command(number, "env", f"SLURM_CONF={self.folder}/slurm.conf", *command)

    def start(self, *command: str) -> "subprocess.Popen[str]":
        """Start a command of a user's; its words can be read."""
        return subprocess.Popen(
            self.command(1, *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, *command: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
        """Run a command of a user's to its end."""
        return subprocess.run(self.command(1, *command), capture_output=True, text=True, timeout=timeout)

    def ask(self, *command: str) -> str:
        """Return what one of SLURM's commands says."""
        return self.run(*command).stdout.strip()

    def bring_up(self) -> None:
        """Start every daemon and wait until both nodes are idle."""
        for name in ("slurm.conf", "slurmdbd.conf"):
            path = self.folder / name
            path.write_text((_FILES / name).read_text().replace("@FOLDER@", str(self.folder)))
            path.chmod(0o600)
        for name in ("state", "spool.host1", "spool.host2", "database"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = [f"--{name}={self.folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        self._daemon(1, "munged", "--foreground", "--force", f"--key-file={key}", *files)
        self._database()
        self._wait((self.folder / "database.socket").exists, "the database")
        self._daemon(1, "slurmdbd", "-D")
        self._wait(lambda: "Cluster" in self.run("sacctmgr", "list", "cluster").stdout, "the accounting")
        self._daemon(1, "slurmctld", "-D")
        for number in (1, 2):
            self.start_node(number)
        self.wait_idle(2)

    def _database(self) -> None:
        data = f"--datadir={self.folder}/database"
        made = subprocess.run(["mariadb-install-db", "--no-defaults", "--user=root", data], capture_output=True)
        if made.returncode:
            raise Failed(f"mariadb-install-db: {made.stderr.decode().strip()[-300:]}")
        place = ("--bind-address=127.0.0.1", "--port=3307", f"--socket={self.folder}/database.socket")
        # without grants: the port is the namespace's own, nobody else reaches it
        open_to_all = ("--no-defaults", "--user=root", "--skip-grant-tables", "--innodb-lock-wait-timeout=900")
        self._daemon(1, "mariadbd", *open_to_all, data, *place, f"--pid-file={self.folder}/database.pid")

    def start_node(self, number: int) -> None:
        """Start the daemon of a node."""
        self._daemon(number, "slurmd", "-D", "-N", f"host{number}")

    def _daemon(self, number: int, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.{number}.out").open("ab") as log:
            self._daemons.append(
                subprocess.Popen(
                    self.command(number, name, *arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def wait_idle(self, count: int) -> None:
        """Wait until so many nodes have nothing to do."""
        self._wait(lambda: len(self.ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()) == count, "idle nodes")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_S
        while not condition():
            ended = [daemon for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise Failed(f"SLURM does not run here ({what}): {self._last_words()}")
            time.sleep(0.2)

    def close(self) -> None:
        """End the daemons; jobs of a node that could not be reached die with its host."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _last_words(self) -> str:
        said = [
            f"{path.name}: {lines[-1][:200]}"
            for path in sorted(self.folder.glob("*.out")) + sorted(self.folder.glob("*.log"))
            if (lines := path.read_text(errors="replace").strip().splitlines())
        ]
        return "; ".join(said)


@contextmanager
def slurm(folder: Path) -> Iterator[Cluster]:
    """Install SLURM if need be and give a running cluster; `Failed` where there can be none. Leaves no process."""
    installed = subprocess.run([str(_FILES / "install")], capture_output=True, text=True)
    if installed.returncode:
        said = (installed.stdout + installed.stderr).strip().splitlines() or ["no reason given"]
        raise Failed(f"SLURM cannot be installed here: {said[-1]}")
    with ExitStack() as stack:
        hosts = stack.enter_context(two_hosts(folder))
        cluster = Cluster(folder, hosts)
        stack.callback(cluster.close)
        cluster.bring_up()
        yield cluster
