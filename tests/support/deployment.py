"""Run Flower on this machine for a test: a SuperLink, its SuperNodes, and apps on them.

Everything listens on loopback, on ports found free, and every process (the ones Flower starts by
itself too) is gone when the ``with`` block is left, whatever happened inside. ::

    with Deployment(tmp_path, [{"partition-id": i, "num-partitions": 3} for i in range(3)]) as d:
        result = d.run(app_dir, {"num-server-rounds": 2}, timeout=120)
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import ssl
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from processes import (
    SCRIPTS,
    DeploymentError,
    FlowerProcess,
    Value,
    environment,
    free_ports,
    key_value_pairs,
    processes_of,
    wait_until,
)
from security import Security

CONNECTION = "test"  # name of the connection in config.toml


class Run:
    """A run submitted with ``flwr run --stream``."""

    def __init__(self, flower: Flower, process: FlowerProcess) -> None:
        self._flower = flower
        self._process = process
        process.start()

    @property
    def output(self) -> str:
        """What the command printed so far, with the streamed log of the ServerApp."""
        return self._process.log()

    def alive(self) -> bool:
        """Return whether the command still follows the run."""
        return self._process.alive()

    @property
    def run_id(self) -> str | None:
        """Flower's id of the run, None as long as it is not known."""
        found = re.search(r"Successfully started run (\d+)", self.output)
        return found.group(1) if found else None

    def status(self) -> tuple[str, str]:
        """Return Flower's status of the run (``finished:completed``, ...) and its details."""
        run_id = self.run_id
        if run_id is None:
            raise self._error("has no id yet")
        answer = self._flower.flwr("list", CONNECTION, "--run-id", run_id, "--format", "json")
        run = json.loads(answer)["runs"][0]
        return run["status"], run["status-details"]

    def wait(self, timeout: float) -> Self:
        """Wait for the end of the run; raise `DeploymentError` unless it completed."""
        ended = wait_until(lambda: not self._process.alive(), timeout)
        self._process.kill()
        exit_status = self._process.exit_status
        if not ended:
            raise self._error(f"did not end in {timeout:g} s")
        if exit_status != 0 or self.run_id is None:
            raise self._error(f"could not be followed: `flwr run` exited with {exit_status}")
        # The command exits with 0 after a failed run too: only the SuperLink knows.
        status, details = self.status()
        if status != "finished:completed":
            raise self._error(f"ended as {status} ({details})")
        return self

    def _error(self, what: str) -> DeploymentError:
        tails = [p.log_tail() for p in [self._process, *self._flower.processes]]
        return DeploymentError("\n".join([f"run {self.run_id} {what}", *tails]))


class Flower:
    """A SuperLink and what else `processes` lists; base of `Deployment` and `Simulation`."""

    run_options: Sequence[str] = ()

    def __init__(
        self,
        root: Path,
        port: int,
        options: Sequence[str],
        startup: float,
        security: Security | None = None,
        *,
        apart: bool = False,
    ) -> None:
        self.root = root.resolve()
        self.port = port
        self.startup = startup
        address = ["--host", "127.0.0.1", "--port", str(port)]
        given = ["--insecure"] if security is None else security.superlink_options
        self.security = security
        own = ["--disable-runtime-dependency-installation"]  # apps run in this environment
        own += ["--isolation", "process"] if apart else []
        self.superlink = FlowerProcess(
            self.root, "superlink", ["flower-superlink", *given, *address, *own, *options]
        )
        self.processes = [self.superlink]
        self._starts_apps = self.superlink  # or what starts them apart from it
        if apart:
            command = ["flower-superexec", "--insecure", "--runtime-api-address"]
            self._starts_apps = FlowerProcess(
                self.root, "superexec", [*command, f"127.0.0.1:{port}"]
            )
            self.processes.append(self._starts_apps)
        self._clients: list[FlowerProcess] = []

    def __enter__(self) -> Self:
        try:
            self.start()
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

    def start(self) -> None:
        """Start the SuperLink and wait until it answers."""
        self.superlink.start()
        self.superlink.wait_ready(self._healthy, self.startup)
        self.start_apps_again()

    def stop(self) -> None:
        """Kill every process, in the order in which nobody waits for anybody."""
        for process in [*self._clients, *reversed(self.processes)]:
            process.kill()

    def kill_superlink(self) -> None:
        """Kill the SuperLink, with its SuperExec and the ServerApps it runs unless apart."""
        self.superlink.kill()

    def start_apps_again(self) -> None:
        """Start again what starts the ServerApps, if it has ended by itself."""
        if not self._starts_apps.alive():
            self._starts_apps.start()

    def kill_server_machine(self) -> None:
        """Kill the SuperLink, what starts the ServerApps, and the ServerApps."""
        self._starts_apps.kill()
        self.superlink.kill()

    def server_apps(self) -> list[int]:
        """Return the processes of the ServerApps that run."""
        found = []
        for pid in processes_of(self._starts_apps.home):
            with suppress(OSError):
                if b"serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def kill_server_apps(self, but: Collection[int] = ()) -> None:
        """Kill the ServerApps that run, `but` some processes."""
        for pid in set(self.server_apps()).difference(but):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop_run(self, run: Run) -> None:
        """Stop a run by ``flwr stop``."""
        assert run.run_id is not None
        self.flwr("stop", run.run_id, CONNECTION)

    def restart_superlink(self) -> None:
        """Start the SuperLink again, on the same port; only a ``--database`` kept its state."""
        Flower.start(self)

    def submit(self, app_dir: Path, run_config: Mapping[str, Value] | None = None) -> Run:
        """Start a run of the app in `app_dir` and return at once."""
        options = [*self.run_options]
        if run_config:
            options += ["--run-config", key_value_pairs(run_config)]
        arguments = ["flwr", "run", str(app_dir), CONNECTION, "--stream", *options]
        client = FlowerProcess(self.root, f"run-{len(self._clients)}", arguments)
        self._clients.append(client)
        self._connect(client.home)
        return Run(self, client)

    def run(
        self,
        app_dir: Path,
        run_config: Mapping[str, Value] | None = None,
        timeout: float = 120,
    ) -> Run:
        """Run the app in `app_dir` to its end; raise `DeploymentError` unless it completed."""
        return self.submit(app_dir, run_config).wait(timeout)

    def flwr(self, *arguments: str, timeout: float = 120) -> str:
        """Return what another ``flwr`` command prints; raise if it fails."""
        home = self.root / "cli"
        self._connect(home)
        command = [str(SCRIPTS / "flwr"), *arguments]
        try:
            done = subprocess.run(
                command, env=environment(home), capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired as error:
            raise DeploymentError(f"{error}\n{self.superlink.log_tail()}") from error
        if done.returncode != 0:
            what = f"flwr {' '.join(arguments)} exited with {done.returncode}"
            raise DeploymentError("\n".join([what, done.stdout, done.stderr]))
        return done.stdout

    def _connect(self, home: Path) -> None:
        """Write the connection to the SuperLink into the FLWR_HOME `home` of a ``flwr``."""
        home.mkdir(parents=True, exist_ok=True)
        how = "insecure = true"
        if self.security is not None:
            how = f'root-certificates = "{self.security.authority}"'
        text = f'[superlink.{CONNECTION}]\naddress = "127.0.0.1:{self.port}"\n{how}\n'
        (home / "config.toml").write_text(text)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        if self.security is not None:
            trusted = ssl.create_default_context(cafile=str(self.security.authority))
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=1, context=trusted
            )
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Deployment(Flower):
    """A SuperLink and one SuperNode for each of `node_configs`, all on loopback.

    Parameters
    ----------
    root : Path
        Folder of the logs (``superlink.log``, ``node-0.log``, ``run-0.log``, ...) and of the
        FLWR_HOME of each process.
    node_configs : Sequence[Mapping[str, Value]]
        What each node's ``Context.node_config`` holds.
    superlink_options : Sequence[str]
        More options of ``flower-superlink``, such as ``--database FILE``.
    security : Security, optional
        TLS, and nodes known by their keys; without it everything is open.
    startup : float
        Seconds which the SuperLink, and then all nodes together, may take to be ready.
    apart : bool
        ServerApps are not processes of the SuperLink's, and outlive it.
    """

    def __init__(
        self,
        root: Path,
        node_configs: Sequence[Mapping[str, Value]],
        superlink_options: Sequence[str] = (),
        startup: float = 60,
        security: Security | None = None,
        *,
        apart: bool = False,
    ) -> None:
        port, *node_ports = free_ports(1 + len(node_configs))
        super().__init__(root, port, superlink_options, startup, security, apart=apart)
        link = ["--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
        self.nodes = []
        for i, config in enumerate(node_configs):
            given = ["--insecure"] if security is None else security.node_options(i)
            own = [*given, "--port", str(node_ports[i]), "--node-config", key_value_pairs(config)]
            self.nodes.append(
                FlowerProcess(self.root, f"node-{i}", ["flower-supernode", *link, *own])
            )
        self.processes += self.nodes

    def start(self) -> None:
        """Start the SuperLink, then all nodes together, and wait until they are registered."""
        super().start()
        if self.security is not None:
            for i in range(len(self.nodes)):
                key, *named = self.security.registration(i)
                self.flwr("supernode", "register", key, CONNECTION, *named)
        for node in self.nodes:
            node.start()
        for i in range(len(self.nodes)):
            self._wait_node(i)

    def node_id(self, index: int) -> int | None:
        """Return the id under which node `index` is registered, None before it is.

        Without node authentication a node gets a new one at each start.
        """
        found = re.search(r"SuperNode ID: (\d+)", self.nodes[index].log())
        return int(found.group(1)) if found else None

    def kill_node(self, index: int) -> None:
        """Kill node `index` with its SuperExec and the ClientApps it runs."""
        self.nodes[index].kill()

    def restart_node(self, index: int) -> None:
        """Start node `index` again, on the same port and with the same configuration."""
        self.nodes[index].start()
        self._wait_node(index)

    def _wait_node(self, index: int) -> None:
        self.nodes[index].wait_ready(lambda: self.node_id(index) is not None, self.startup)


class Simulation(Flower):
    """A SuperLink which runs apps in Flower's own simulation (Ray), with `num_supernodes` nodes.

    Started here and not by ``flwr run``, which would leave it running in the background, on a
    port all users of the machine share; the command is the one ``flwr run`` uses.
    """

    def __init__(self, root: Path, num_supernodes: int, startup: float = 60) -> None:
        super().__init__(root, free_ports(1)[0], ["--simulation"], startup)
        # By default each client takes two CPUs, more than a small machine may have.
        options = {"num-supernodes": num_supernodes, "client-resources-num-cpus": 1}
        self.run_options = ["--federation-config", key_value_pairs(options)]
