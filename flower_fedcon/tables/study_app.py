"""The Flower app of a study on tables, which `fedcon new --study FILE` writes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from flower_fedcon.core.protocol import CERTIFY
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower.policy import Policy
from flower_fedcon.problems import builder
from flower_fedcon.problems.files import paths_of
from flower_fedcon.runs.toml import read_toml, write_value
from flower_fedcon.runs.toml_schema import check_keys, check_table, check_types, context
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.schema import Schema
from flower_fedcon.tables.wing import ALONE, BASELINE, CURVES, LEVELS, RISK_SETS
from flower_fedcon.validation import parameters

_METHOD = "FedNewton"
_NOT_ON_NODES = {
    "penalty": "the columns of a feature are known when nodes have prepared them",
    "penalty_factor": "the columns are known when nodes have prepared them",
    "partition": "each node has a file of its own",
    "min_rows": "each node says it in its own configuration, policy.min-rows=20",
}
SERVER = Template('''\
"""The server's side: $title."""

from pathlib import Path

from flower_fedcon import server_app
from flower_fedcon.regularizers import $kinds
from flower_fedcon.strategies import FedNewton


def make_strategy(context):
    config = context.run_config
    penalty = $penalty
$method


app = server_app(make_strategy, schema=Path(__file__).parent / "schema.toml")
''')
_FREE = """\
    own = config["site-effects"] == "own"  # then the model has no intercept
    return FedNewton(penalty if own else WithIntercept(penalty))"""
_COX = "    return FedNewton(penalty)"
CLIENT = '''\
"""A site's side: the table that the node's configuration names, read by the shared schema."""

from pathlib import Path

from flower_fedcon import client_app
from flower_fedcon.tables import table_of_node

app = client_app(table_of_node(Path(__file__).parent / "schema.toml"))
'''
_README = Template("""\
# $name

The study in `$file` as a Flower app: all sites share `schema.toml`, and the keys of
`[tool.flwr.app.config]` in `pyproject.toml` say the rest. This command starts it on one machine,
with a SuperLink and a SuperNode for each file:

    $deploy

which leaves coefficients, report and model in `runs/$name`: `fedcon report`, `fedcon contrast` and
`fedcon predict` read them there.$held_out On several machines Flower's own commands start a
SuperLink, and a SuperNode at each site, whose configuration names its file and what it allows:

    --node-config 'data="FILE" name="SITE" state-dir="FOLDER" policy.phases="$phases"'

The run then names a folder on the SuperLink's machine; without one it leaves nothing but its log:

    flwr run . --run-config 'run-dir="/FOLDER/FOR/RESULTS"'
""")
_HELD_OUT = """ With `policy.min-cell=1` beside these phases
the AUC of all rows together is that of `fedcon run` to the last bit; by default nodes count rows by
predicted probability in larger bins."""


class Study:
    """The parts of an experiment on tables that an app needs; no data is read.

    Parameters
    ----------
    file : path
        An experiment file whose problem is tables.

    Raises
    ------
    ConfigError
        If it is not on tables, or asks for something that nodes cannot do.
    """

    def __init__(self, file: Path) -> None:
        self._file, stated = file, read_toml(file)
        with context(str(file)):
            check_table(stated.get("problem"), "[problem]")
            settings = dict(stated["problem"])
            name = settings.pop("name", None)
            if name is None or builder(name) is not tables:
                raise ConfigError(
                    f'the app of a study needs a [problem] with name = "tables", got {name!r}'
                )
            settings.pop("reference", None)
            check_keys(settings, parameters(tables), "[problem]")
            check_types(settings, parameters(tables))
            for key, why in _NOT_ON_NODES.items():
                if key in settings and settings[key] != parameters(tables)[key].default:
                    raise ConfigError(
                        f"[problem]: an app has no setting {key}, since {why}. Leave it out"
                    )
            method = stated.get("algorithm", {"name": _METHOD})
            if method != {"name": _METHOD}:
                raise ConfigError(
                    f"[algorithm]: the app of a study uses {_METHOD} without settings: leave the "
                    f"table out; another strategy can be written into server_app.py afterwards"
                )
            if "rounds" not in stated.get("run", {}):
                raise ConfigError("rounds is missing: write rounds = 10 below [run]")
            self._run: Mapping[str, Any] = stated["run"]
            self._own: Mapping[str, Any] = settings
            self.schema = Schema.load(settings["schema"]) if "schema" in settings else None
            if self.schema is None:
                raise ConfigError('[problem]: the schema is missing: write schema = "schema.toml"')

    @property
    def extra(self) -> str:
        """The extras of this package that the app needs."""
        given = self._own["schema"]
        text = given if isinstance(given, dict) else read_toml(given)
        return "[tables,formula]" if "formula" in text else "[tables]"

    @property
    def config(self) -> str:
        """The run configuration."""
        settings, run = self._own, self._run
        values = {
            "num-server-rounds": run["rounds"],
            "evaluate-every": 0,
            "weighting": settings.get("weighting", "examples"),
            "l1": float(settings.get("l1", 0.0)),
            **({"l2": float(settings["l2"])} if settings.get("l2") else {}),
            "inference": settings.get("inference", ""),
            "site-effects": settings.get("site_effects", "common"),
            "heterogeneity": settings.get("heterogeneity", False),
            "certificates": True,
            "run-dir": "",
            "resume": False,
            "seed": run.get("seed", 0),
            "timeout": 3600,
        }
        notes = {
            "evaluate-every": "0: at the end",
            "weighting": '"examples": each row counts alike, as in pooled data',
            "l1": "lambda, for the mean loss over all rows",
            "certificates": "the KKT residual; nodes must allow it",
        }
        lines = [f"{key} = {write_value(value)}" for key, value in values.items()]
        width = max(map(len, lines)) + 1
        return "\n".join(
            f"{line:{width}}# {notes[key]}" if key in notes else line
            for key, line in zip(values, lines, strict=True)
        )

    @property
    def phases(self) -> str:
        """The phases that nodes must allow, in the form of their configuration."""
        assert self.schema is not None  # noqa: S101  (checked at the start)
        names = [*Policy().phases, CERTIFY]
        names += [ALONE] * bool(self._own.get("heterogeneity"))
        names += [LEVELS] * bool(self.schema.describe_by)
        if self.schema.curve_times:
            own = self.schema.stratified and self._own.get("inference")
            names += [CURVES, *([BASELINE] * bool(own))]
        if not (self.schema.stratified or self.schema.baseline_times):
            names.append(RISK_SETS)
        return ",".join(names)

    def deploy(self, folder: Path) -> str:
        """Return the command that runs the app on nodes of this machine."""
        try:
            files = paths_of(self._own.get("data", []))
        except ConfigError:  # a server need not have these files
            files = ["FILE"]
        words = ["fedcon", "deploy", "--local", str(folder)]
        words += [word for file in files for word in ("--data", str(file))]
        words += ["--node-config", f'policy.phases="{self.phases}"']
        words += ["--run-dir", f"runs/{folder.name}-nodes"]  # next to the run in this process
        return shlex.join(words)

    def files(self, folder: Path) -> dict[str, str]:
        """Return the texts of all files except `pyproject.toml`, by name."""
        assert self.schema is not None  # noqa: S101  (checked at the start)
        square, free = bool(self._own.get("l2")), not self.schema.family.compares
        kind = "ElasticNet" if square else "L1"
        weights = ", ".join(f'float(config["{key}"])' for key in ("l1", "l2")[: 1 + square])
        words = {
            "name": folder.name,
            "file": str(self._file),
            "title": f"{_METHOD}, with the penalty of the run configuration"
            + ("; intercepts are free" if free else ""),
            "kinds": ", ".join([kind, *["WithIntercept"] * free]),
            "penalty": f"{kind}({weights})",
            "method": _FREE if free else _COX,
            "deploy": self.deploy(folder),
            "phases": self.phases,
            "held_out": _HELD_OUT if self.schema.test_fraction else "",
        }
        given = self._own["schema"]
        if isinstance(given, dict):
            schema = "".join(f"{key} = {write_value(value)}\n" for key, value in given.items())
        else:
            schema = Path(given).read_text(encoding="utf-8-sig")
        return {
            "README.md": _README.substitute(words),
            "server_app.py": SERVER.substitute(words),
            "client_app.py": CLIENT,
            "schema.toml": schema,
        }
