"""Runs the strategy that the run configuration names."""

import json
import time
from pathlib import Path

import misfortunes

from flower_fedcon import Buffered, Full, Sample, server_app
from flower_fedcon.registry import strategy_class
from flower_fedcon.regularizers import L1
from flower_fedcon.sets import L1Ball

ORACLES = {"constraint": L1Ball(radius=5.0), "regularizer": L1(weight=0.1)}
HOLD: list[tuple[Path, int]] = []  # while "hold" is in this folder, rounds from this one on wait


def hold(row):
    for folder, last in HOLD:
        misfortunes.expect(folder, "server")
        while row["round"] >= last and (folder / "hold").exists():
            time.sleep(0.1)


def make_strategy(context):
    config = context.run_config
    folder = Path(str(config["run-dir"])).parent
    HOLD.append((folder, int(config["num-server-rounds"]) - 4))
    misfortunes.expect(folder, "server")
    arguments = json.loads(str(config["arguments"]).replace("'", '"'))
    cohort = arguments.pop("sample", None)
    participation = Full() if cohort is None else Sample(count=cohort)
    if (buffer := arguments.pop("buffer", None)) is not None:
        participation = Buffered(buffer=buffer)
    oracle = arguments.pop("oracle", None)
    if oracle is not None:
        arguments[oracle] = ORACLES[oracle]
    return strategy_class(str(config["algorithm"]))(participation=participation, **arguments)


app = server_app(make_strategy, callbacks=[hold])
