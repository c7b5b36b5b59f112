"""A whole Flower deployment on this machine: a SuperLink, SuperNodes, and an app on them.

All processes listen on free ports of loopback, each with its own FLWR_HOME. All of them, also those
that Flower starts, have ended when the ``with`` block is left.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.validation import count
from flower_fedcon.wire.whole_files import write_text

CONNECTION = "local-nodes"  # its name in config.toml
_PROGRAMS = "flower-superlink", "flower-supernode", "flwr"
_TAIL = 12  # lines of a log
_STARTUP = 120.0  # seconds until the SuperLink must listen


class LocalDeployment:
    """A SuperLink and nodes on loopback.

    Parameters
    ----------
    folder : path
        Folder for logs, the homes of the processes, and the nodes' states, which a later deployment
        in the same folder reuses.
    nodes : int
        How many SuperNodes; node i has partition-id=i and num-partitions=nodes.
    node_config : str, or sequence of str
        Further pairs key=value of the nodes' configuration, where "{i}" stands for the node's
        number; or a text for each node. Relative paths start from the working directory.
    say : callable
        Called with a line of text for each step.
    """

    def __init__(
        self,
        folder: str | Path,
        nodes: int,
        node_config: str | Sequence[str] = "",
        *,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.folder = Path(folder).resolve()
        self._nodes = count("nodes", nodes)
        texts = [node_config] * nodes if isinstance(node_config, str) else list(node_config)
        self._node_configs: list[str] = texts
        if len(self._node_configs) != nodes:
            raise ConfigError(
                f"{nodes} nodes need one configuration each, got {len(self._node_configs)}"
            )
        self._say = say
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        if family_of(self.folder):
            raise ConfigError(
                f"a deployment already runs in {self.folder}: stop it, or choose another folder"
            )
        for name in _PROGRAMS:
            program(name)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def run(self, app: Path, run_config: str = "") -> bool:
        """Run an app to its end, its log on standard output; return whether it completed."""
        arguments = ["flwr", "run", str(app), CONNECTION, "--stream"]
        if run_config:
            arguments += ["--run-config", run_config]
        self._say(f"{' '.join(arguments[:4])} ...")
        streamed = self._popen(arguments, "flwr", stdout=subprocess.PIPE)
        told = ""
        for line in streamed.stdout or ():
            text = line.decode(errors="replace")
            told += text
            self._say(text.rstrip("\n"))
        started = re.search(r"Successfully started run (\d+)", told)
        if streamed.wait() != 0 or started is None:
            lines = self._log("flwr").read_text(errors="replace").splitlines()
            self._say("\n".join(["`flwr run` failed:", *filter(str.strip, lines[-_TAIL:])]))
            return False
        # The command exits with 0 after a failed run too: only the SuperLink knows.
        listed = self._popen(
            ["flwr", "list", CONNECTION, "--run-id", started[1], "--format", "json"],
            "flwr",
            stdout=subprocess.PIPE,
        ).communicate()[0]
        return b"finished:completed" in listed

    def stop(self) -> None:
        """End every process, first by a request, then by force."""
        for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
            deadline = time.monotonic() + patience
            signalled: set[int] = set()
            while family := family_of(self.folder):
                for pid in family - signalled:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                signalled |= family
                for process in self._started:
                    process.poll()
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        for process in self._started:
            process.wait()
        self._started.clear()

    def _start(self) -> None:
        link, *ports = free_ports(1 + self._nodes)
        home = self.folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        connection = f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
        write_text(home / "config.toml", connection)
        address = ["--insecure", "--host", "127.0.0.1", "--port", str(link)]
        option = "--disable-runtime-dependency-installation"
        superlink = self._popen(["flower-superlink", *address, option], "superlink")
        deadline = time.monotonic() + _STARTUP
        while not _listens(link):
            if superlink.poll() is not None or time.monotonic() > deadline:
                raise FedConError(f"the SuperLink did not start: see {self._log('superlink')}")
            time.sleep(0.1)
        self._say(f"SuperLink on 127.0.0.1:{link}, {self._nodes} nodes, logs in {self.folder}")
        for i, port in enumerate(ports):
            state = self.folder / f"node-{i}" / "state"
            pairs = f'partition-id={i} num-partitions={self._nodes} state-dir="{state}" '
            pairs += self._node_configs[i].replace("{i}", str(i))
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}"]
            self._popen([*node, "--port", str(port), "--node-config", pairs.strip()], f"node-{i}")

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _popen(
        self, arguments: Sequence[str], name: str, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command with its own FLWR_HOME, not affected by this terminal's Ctrl-C."""
        command = program(arguments[0])
        env = {**os.environ, "PATH": _path(), "FLWR_HOME": str(self.folder / name)}
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603  (Flower's own commands)
                [command, *arguments[1:]],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stdout or log,
                stderr=subprocess.STDOUT if stdout is None else log,
                start_new_session=True,
            )
        self._started.append(process)
        return process


def program(name: str) -> str:
    """Return the path of one of Flower's programs.

    Raises
    ------
    ConfigError
        If it is neither beside this Python nor on PATH.
    """
    path = shutil.which(name, path=_path())
    if path is None:
        raise ConfigError(
            f"there is no program {name} beside this Python, in {sysconfig.get_path('scripts')}, "
            f"nor on PATH, {os.environ.get('PATH', os.defpath)}: install Flower in this "
            f"environment (pip install flwr), or add its folder to PATH"
        )
    return path


def _path() -> str:
    """Return the folders of programs: that of this Python's, then those of PATH."""
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def family_of(home: Path) -> set[int]:
    """Return the live processes whose FLWR_HOME is `home` or in it, and their descendants.

    The environment alone would miss the SuperExec, which hides it from other users; the process
    group alone would miss processes that leave it. Empty without /proc.
    """
    marker = b"FLWR_HOME=" + os.fsencode(home)
    parents: dict[int, int] = {}
    family: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue
            parents[int(entry.name)] = int(parent)
            settings = (entry / "environ").read_bytes().split(b"\0")
            if any(s == marker or s.startswith(marker + b"/") for s in settings):
                family.add(int(entry.name))
        except OSError:  # ended meanwhile, or not readable
            continue
    while more := {p for p, parent in parents.items() if parent in family} - family:
        family |= more
    return family - {os.getpid()}


def free_ports(number: int) -> list[int]:
    """Return different TCP ports which are free on loopback."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for sock in sockets:  # all are held until all are found, so that no two are the same
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(("127.0.0.1", port)) == 0
