"""`fedcon deploy`: a Flower app on SuperNodes on this machine."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Annotated, Any, NoReturn

import typer

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.runs.commands import Command
from flower_fedcon.runs.console import InterruptedRunError, say

_PAIR = re.compile(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""")  # as Flower divides a configuration
_ENDS = signal.SIGINT, signal.SIGTERM


def interrupt_once(number: int, frame: FrameType | None) -> NoReturn:
    """End everything, and ignore further signals meanwhile, so that nothing keeps running."""
    for each in _ENDS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def _check_before(
    app: Path, node_configs: Iterable[str], run_config: str, run_dir: Path | None
) -> None:
    """Raise if the run cannot begin, before anything is started; say what nodes will refuse.

    Raises
    ------
    ConfigError
        If the run's folder already holds a run, or if a node's configuration is not valid, has an
        unknown policy, or names a table that does not fit the schema of the app.
    """
    from flower_fedcon.core.protocol import CERTIFY
    from flower_fedcon.flower.policy import Policy
    from flower_fedcon.runs.directory import runs_in
    from flower_fedcon.runs.toml import parse_toml, read_toml

    def parsed(option: str, text: str) -> dict[str, Any]:
        pairs = [] if text.endswith(".toml") else _PAIR.findall(text)  # Flower reads the file
        try:
            return parse_toml("\n".join(f'"{key}" = {value}' for key, value in pairs))
        except ConfigError:
            raise ConfigError(
                f'{option}: {text} is no list of pairs key=value, such as name="north" seed=3'
            ) from None

    stated = read_toml(app / "pyproject.toml").get("tool", {}).get("flwr", {}).get("app", {})
    config = {**stated.get("config", {}), **parsed("--run-config", run_config)}
    folder = Path(str(config.get("run-dir") or "")) if run_dir is None else run_dir
    known = run_dir is not None or folder.is_absolute()  # otherwise relative to the server's folder
    if known and config.get("resume") is not True and runs_in(folder):
        raise ConfigError(
            f"{folder} holds a run already: choose another --run-dir, remove it, or go on with "
            "--run-config 'resume=true'"
        )
    schema = app / "schema.toml"
    codes = [path.read_text(encoding="utf-8") for path in app.glob("*.py")]
    tables = schema.is_file() and any("table_of_node" in code for code in codes)
    wrong, refused = [], set()
    for text in node_configs:
        said = parsed("--node-config", text)
        policy = Policy.of(said)
        if tables:
            from flower_fedcon.tables import table_of_node
            from flower_fedcon.tables.wing import ALONE

            asked = {CERTIFY: config.get("certificates"), ALONE: config.get("heterogeneity")}
            refused |= {phase for phase, given in asked.items() if given} - set(policy.phases)
            if "data" in said:
                try:
                    table_of_node(schema)(SimpleNamespace(node_config=said))  # type: ignore[arg-type]
                except ConfigError as error:
                    wrong.append(str(error))
    if wrong:
        raise ConfigError("; ".join(wrong))
    if refused and not any("Policy(" in code for code in codes):
        phases = ",".join([*policy.phases, *sorted(refused)])
        say(
            f"nodes will refuse {' and '.join(sorted(refused))}, which the app asks for: "
            f"--node-config 'policy.phases=\"{phases}\"' allows it"
        )


def deploy(
    app: Annotated[
        Path, typer.Argument(help="Folder of a Flower app, with its pyproject.toml.", metavar="APP")
    ],
    local: Annotated[
        bool, typer.Option("--local", help="Run on this machine (required).")
    ] = False,
    nodes: Annotated[
        int | None, typer.Option(help="Number of SuperNodes. Default: 3, or one for each --data.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="A node's data file, once for each node. The node's configuration gets "
                     'data="FILE" and name="STEM", the file name without its ending.'),
    ] = None,
    node_config: Annotated[
        str,
        typer.Option(help="Configuration of each node, where {i} stands for its number: "
                     "'data=\"client-{i}.npz\"'."),
    ] = "",
    run_config: Annotated[
        str, typer.Option(help="As for `flwr run`: keys that the app's pyproject.toml lists.")
    ] = "",
    run_dir: Annotated[
        Path | None,
        typer.Option(help="The run's folder; overrides run-dir in --run-config."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for logs and state; by default runs/<APP>-deployed.")
    ] = None,
) -> None:  # fmt: skip
    """Start a SuperLink and SuperNodes, run an app on them, and stop everything.

    Ctrl-C stops everything, too. The nodes' state stays in the folder for the next start.
    """
    from flower_fedcon.flower.deployment import LocalDeployment

    if not local:
        raise ConfigError(
            "--local is missing: this command starts nodes on this machine only; on several "
            "machines use Flower's own commands"
        )
    if not (app / "pyproject.toml").is_file():
        raise ConfigError(f"{app} is not a Flower app: it has no {app / 'pyproject.toml'}")
    _check_keys(app / "pyproject.toml", run_config)
    home = folder or Path("runs") / f"{app.resolve().name}-deployed"
    for end in _ENDS:
        signal.signal(end, interrupt_once)
    files = data or []
    if files and nodes not in (None, len(files)):
        raise ConfigError(
            f"--nodes {nodes} contradicts {len(files)} times --data: give --data once for each node"
        )
    for path in files:
        if not path.is_file():
            raise ConfigError(f"--data {path}: no such file")
    configs = [f'data="{path.resolve()}" name="{path.stem}" {node_config}' for path in files]
    number = len(files) or (3 if nodes is None else nodes)
    each = configs or [node_config.replace("{i}", str(i)) for i in range(number)]
    _check_before(app, each, run_config, run_dir)
    if run_dir is not None:
        _check_keys(app / "pyproject.toml", 'run-dir=""', "--run-dir")
        run_config = f'{run_config} run-dir="{run_dir.resolve()}"'.strip()
    try:
        with LocalDeployment(home, number, configs or node_config, say=say) as deployment:
            completed = deployment.run(app, run_config)
    except KeyboardInterrupt:
        raise InterruptedRunError(
            f"interrupted: everything is stopped, and the nodes' state is in {home}. The same "
            f"command continues the run; add resume=true to --run-config if the app lists that key"
        ) from None
    say("stopped")
    if not completed:
        raise typer.Exit(1)
    if run_dir is not None:
        say(f"directory: {run_dir}")


def _check_keys(about: Path, given: str, option: str = "--run-config") -> None:
    """Refuse a run configuration with a key that the app does not list.

    Flower's own error comes only after the nodes have started, and does not name the key.
    """
    from flower_fedcon.runs.toml import read_toml

    listed: Any = read_toml(about)
    for part in ("tool", "flwr", "app", "config"):
        listed = listed.get(part, {})
    keys = set(_flat(listed))
    pairs = [key for key, _ in _PAIR.findall(given)]
    asked = _flat(read_toml(given)) if given.endswith(".toml") else pairs
    for key in asked:
        if key not in keys:
            raise ConfigError(
                f"{option}: {about} lists no key {key!r} under [tool.flwr.app.config]"
                + (f": {nearest(key, keys)}" if keys else "")
            )


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Yield the keys of a table; those of inner tables joined as in Flower."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key


COMMANDS = {
    "deploy": Command(
        deploy,
        180,
        "fedcon deploy sims --local --nodes 3",
        "fedcon deploy examples/heart/app --local --data examples/heart/cleveland.csv --data "
        "examples/heart/va.csv",
    )
}
