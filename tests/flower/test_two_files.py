"""The pages' two files are an app: with every method, in memory and in Flower's simulation."""

from __future__ import annotations

import re
from inspect import Parameter, signature

import numpy as np
import pytest
from apps import modules, played, simulated, written
from deployment import Deployment, Simulation
from fake_grid import on_grid
from flwr.app import Context, RecordDict
from pages import APP, ON_NODES, ROOT, app_files, files, in_order, pages

from flower_fedcon.errors import FedConError
from flower_fedcon.registry import algorithms

pytestmark = on_grid

ROUNDS = 20
LOAD = "\ndef load_objective("
OBJECTIVES = {
    "LeastSquares": "",
    # With a constraint beside f, which FedSGM and FedProxAL are for.
    "Limited": """
class Limited(LeastSquares):
    def constraint_value(self, x):
        return float(x.sum()) - 1.0

    def constraint_gradient(self, x):
        return np.ones_like(x)

""",
    # What an objective of one's own has at least: it states no constant of which steps follow.
    "Unstated": """
class Unstated:
    def __init__(self, A, b):
        self.A, self.b, self.shape = A, b, A.shape[1:]

    def value(self, x):
        return float(np.mean((self.A @ x - self.b) ** 2) / 2)

    def gradient(self, x):
        return self.A.T @ (self.A @ x - self.b) / len(self.b)

""",
}
BOUNDED = ("fedsgm", "fedproxal")


def objective_for(name):
    return "Limited" if name in BOUNDED else "LeastSquares"


def app_with(name, objective="LeastSquares"):
    """Return README's app with a method in place of its own, by the least that it must be given."""
    kind, texts = algorithms()[name], app_files()
    takes, given, room = signature(kind).parameters, "", ""
    if "constraint" in takes:
        given = "L1Ball(radius=5.0)"
    elif "regularizer" in takes and takes["regularizer"].default is Parameter.empty:
        given, room = "L1(0.01)", "from flower_fedcon.regularizers import L1\n"
    server = texts["server_app.py"].replace(
        "FedFW(L1Ball(radius=5.0))", f"{kind.__name__}({given})"
    )
    server = server.replace("import FedFW\n", f"import {kind.__name__}\n{room}")
    assert server.count(kind.__name__) == 2
    client = texts["client_app.py"].replace("return LeastSquares(", f"return {objective}(")
    client = client.replace("\ndef load_objective(", OBJECTIVES[objective] + LOAD)
    assert client.count(f"{objective}(") >= 2
    return texts | {"server_app.py": server, "client_app.py": client}


def at_the_start(folder, clients=3):
    """Return F at zero, where a run begins."""
    with modules(folder) as (client, _):
        nodes = [Context(1, 1, {"partition-id": j}, RecordDict(), {}) for j in range(clients)]
        found = [client.load_objective(node) for node in nodes]
    return np.mean([f.value(np.zeros(f.shape)) for f in found])


@pytest.mark.filterwarnings("ignore:FedNewton")
@pytest.mark.parametrize("name", algorithms())
def test_every_method_runs_by_its_defaults_on_nodes_as_they_are(name, tmp_path):
    folder = written(tmp_path / "app", app_with(name, objective_for(name)))
    history = played(folder, **{"num-server-rounds": ROUNDS, "evaluate-every": 1}).history
    assert [row["round"] for row in history.rows] == [*range(1, ROUNDS + 1)]
    assert {row["replies"] for row in history.rows} == {3}
    assert history["objective"][-1] < at_the_start(folder)
    assert np.isfinite(history.x).all()


OPEN = "from flower_fedcon import Policy\n\napp = client_app(load_objective, policy=Policy.open())"


@pytest.mark.parametrize("name", [name for name in algorithms() if name not in BOUNDED])
def test_the_default_policy_stops_no_method_whose_steps_follow_from_estimates(name, tmp_path):
    """Of clients that state no constant: the models, or the refusal, of nodes that allow all."""
    ends = []
    for app in ("app = client_app(load_objective)", OPEN):
        texts = app_with(name, "Unstated")
        client = texts["client_app.py"].replace("app = client_app(load_objective)", app)
        texts["client_app.py"] = client
        folder = written(tmp_path / str(len(ends)), texts)
        try:
            ends.append(played(folder, **{"num-server-rounds": 3}).history.x.tobytes())
        except FedConError as error:
            ends.append(str(error))
    assert ends[0] == ends[1]


SETTINGS = dict.fromkeys(("fedfw", "fedfwplus", "fedproxal"), "penalty")
SETTINGS |= {"fedsgm": "lipschitz", "fedmls": "step_size", "drfa": "lipschitz"}


@pytest.mark.filterwarnings("ignore:FedNewton")
@pytest.mark.parametrize("name", algorithms())
def test_what_a_policy_stops_is_said_before_round_1_in_one_sentence(name, tmp_path, log):
    """With the setting that makes it needless, the policy's key, and where each is written."""
    folder = written(tmp_path / "app", app_with(name, objective_for(name)))
    nodes = [{"policy.phases": "train"}] * 3
    try:
        history = played(folder, nodes, **{"num-server-rounds": 3}).history
    except FedConError as error:
        told = str(error)
        assert "[ROUND 1/" not in log.text
        assert "\n" not in told
        for words in (SETTINGS[name], "server_app", r"policy\.phases", "node.?config"):
            assert re.search(words, told), words
    else:
        assert history.rows[-1]["replies"] == 3


# --- as the pages show them ----------------------------------------------------------------------

NODES = 10  # of which the page on privacy needs nine
PAGES = [
    page for page in map(str, (p.relative_to(ROOT) for p in pages())) if {*APP} & {*files(page)}
]
NOISY = ("docs/privacy.md", "docs/secure_aggregation.md")  # by the nodes' own random numbers
ASKED = {"num-server-rounds": 3, "evaluate-every": 1}


def test_code_of_an_app_is_in_a_file():
    """A block without a file's name would not be played."""
    for page in pages():
        for _, block in in_order(page):
            if re.search(r"^app = |@app\.(main|train)", block, re.MULTILINE):
                assert re.match(r"(# (server|client)_app\.py|--- a/)", block), (page, block)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("pages")
    return {page: written(base / re.sub(r"\W", "-", page), app_files(page)) for page in PAGES}


@pytest.fixture(scope="module")
def in_flower(folders, tmp_path_factory):
    """What the pages' apps have found in Flower's simulation, one for all."""
    return simulated(folders, tmp_path_factory.mktemp("turn") / "folder", NODES, **ASKED)


@pytest.mark.ray
@pytest.mark.parametrize("page", PAGES)
def test_a_page_s_app_runs_in_flower_s_simulation(page, folders, in_flower):
    found = in_flower[page]
    if isinstance(found, FedConError):
        raise found
    last = found.history.rows[-1]
    assert (last["round"], last["replies"], last["dropped"]) == (3, last["cohort"], 0)
    if page == "docs/privacy.md":
        assert 0 < last["epsilon"] < 1  # and exact objectives are not recorded
    elif "objective" in last:
        assert last["objective"] < at_the_start(folders[page], NODES)
    else:
        measured = found.train_metrics_clientapp
        assert measured[3]["train_loss"] < measured[1]["train_loss"]
    if page not in NOISY:
        here = played(folders[page], clients=NODES, **ASKED)
        for name, array in found.arrays.items():
            assert array.numpy().tobytes() == here.arrays[name].numpy().tobytes()


@pytest.mark.nightly
@pytest.mark.ray
def test_flwr_run_plays_the_pages_apps(folders, tmp_path):
    with Simulation(tmp_path / "flower", NODES) as simulation:
        for folder in folders.values():
            output = simulation.run(folder, {"num-server-rounds": 2}, timeout=600).output
            assert "[ROUND 2/2]" in output


@pytest.mark.nightly
@pytest.mark.deployment
def test_nodes_play_the_pages_apps(folders, tmp_path):
    """Those that are not in test_deployed.py."""
    nodes = [{"partition-id": j, "num-partitions": NODES} for j in range(NODES)]
    with Deployment(tmp_path / "flower", nodes, startup=300) as deployment:
        for page, folder in folders.items():
            if page not in ON_NODES:
                output = deployment.run(folder, {"num-server-rounds": 2}, timeout=900).output
                assert "[ROUND 2/2]" in output
