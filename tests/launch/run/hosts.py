"""Two hosts on one machine: network namespaces with a host name, an address and a hosts file each. Needs root."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

_NAMES = (f"rs{os.getpid()}p{number}h" for number in itertools.count())  # pairs of several tests live side by side
_INSIDE = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
_RELAY = Path(__file__).parent / "relay.py"
_END_S = 5.0


def missing() -> str | None:
    """Return why there can be no hosts here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = [name for name in ("ip", "nsenter", "unshare", "mount") if shutil.which(name) is None]
    if tools:
        return f"not installed: {', '.join(tools)} (iproute2, util-linux)"
    name = next(_NAMES)
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return None if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


class Hosts:
    """The hosts `host1` and `host2`; `command` puts a command on one of them."""

    def __init__(self, folder: Path, name: str) -> None:
        self._name = name
        self._files = {}
        for number in (1, 2):
            path = folder / f"hosts{number}"
            path.write_text("127.0.0.1 localhost\n10.87.0.1 host1\n10.87.0.2 host2\n")
            self._files[number] = path

    def namespace(self, number: int) -> str:
        """Return the name of a host's network namespace."""
        return f"{self._name}{number}"

    def command(self, number: int, *command: str) -> list[str]:
        """Return `command` as it runs on host `number`, with one thread a rank.

        Both hosts are this machine: a rank that took every core, as it would on its own host, would disturb the other.
        """
        name = f"host{number}"
        inside = ["sh", "-c", _INSIDE, "sh", name, str(self._files[number]), "env", "OMP_NUM_THREADS=1", *command]
        return ["nsenter", f"--net=/run/netns/{self.namespace(number)}", "unshare", "--uts", "--mount", *inside]

    def processes(self, *numbers: int) -> list[psutil.Process]:
        """Return what runs on the hosts."""
        found = []
        for number in numbers:
            pids = subprocess.run(["ip", "netns", "pids", self.namespace(number)], capture_output=True, text=True)
            for pid in pids.stdout.split():
                try:
                    found.append(psutil.Process(int(pid)))
                except psutil.NoSuchProcess:
                    continue
        return found

    def limit(self, mbit: int) -> None:
        """Let so many Mbit/s pass in either direction."""
        for number in (1, 2):
            at = (self.namespace(number), "qdisc", "replace", "dev", f"rsv{number}", "root", "tbf")
            subprocess.run(["tc", "-n", *at, "rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms"], check=True)

    def cut(self) -> None:
        """Take the link between the hosts down."""
        _ip("-n", self.namespace(2), "link", "set", "rsv2", "down")

    def mend(self) -> None:
        """Take the link up again."""
        _ip("-n", self.namespace(2), "link", "set", "rsv2", "up")


@contextmanager
def two_hosts(folder: Path, delay_s: float | None = None) -> Iterator[Hosts]:
    """Make the two hosts, and take them away at the end with whatever runs on them.

    `delay_s`: what a packet takes from one to the other; None: as fast as this machine is.
    """
    hosts = Hosts(folder, next(_NAMES))
    names = {number: hosts.namespace(number) for number in (1, 2)}
    with ExitStack() as stack:
        for name in names.values():
            _ip("netns", "add", name)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], capture_output=True)
        stack.callback(lambda: _end(hosts.processes(1, 2)))
        if delay_s is None:
            _ip("link", "add", "rsv1", "netns", names[1], "type", "veth", "peer", "name", "rsv2", "netns", names[2])
        else:
            stack.enter_context(_relayed(names[1], "rsv1", names[2], "rsv2", str(delay_s)))
        for number in (1, 2):
            _ip("-n", names[number], "addr", "add", f"10.87.0.{number}/24", "dev", f"rsv{number}")
            for link in (f"rsv{number}", "lo"):
                _ip("-n", names[number], "link", "set", link, "up")
        yield hosts


@contextmanager
def _relayed(*arguments: str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, str(_RELAY), *arguments], stdout=subprocess.PIPE, text=True) as relay:
        try:
            assert relay.stdout is not None and relay.stdout.readline() == "up\n"
            yield
        finally:
            relay.terminate()


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=_END_S)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=_END_S)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
