"""Apps that `fedcon new` writes, and the examples: they run, and Flower makes bundles of them."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
from apps import played, run_config
from deployment import Simulation
from fake_grid import on_grid
from flwr.common.config import parse_config_args
from typer.testing import CliRunner

from flower_fedcon.cli.command import app as fedcon
from flower_fedcon.cli.commands import new_app
from flower_fedcon.errors import ConfigError

ROOT = Path(__file__).parents[2]
EXAMPLES = ["examples/pytorch/quickstart", "examples/pytorch/fuller", "examples/heart/app", "sims"]
FRAMEWORKS = ["numpy", "sklearn", "tables", "torch"]
CASES = [
    *[(framework, "feddualavg") for framework in FRAMEWORKS],
    *[("numpy", name) for name in new_app._WITH_OBJECTIVES if name != "feddualavg"],
    ("torch", "scaffold"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """One app of each framework, by the command."""
    base = tmp_path_factory.mktemp("new")
    for framework in FRAMEWORKS:
        arguments = ["new", str(base / f"my-{framework}"), "--framework", framework]
        told = CliRunner().invoke(fedcon, arguments)
        assert told.exit_code == 0, told.output
        assert f"flwr run {base}" in told.output.replace("\n", "")
    return base


@on_grid
@pytest.mark.parametrize("algorithm", ["feddualavg", "scaffold"])
def test_a_new_app_with_a_train_loop_learns_in_its_own_rounds(algorithm, tmp_path):
    for name, text in new_app.files("my-app", algorithm, "torch").items():
        (tmp_path / name).write_text(text)
    result = played(tmp_path, **{"evaluate-every": 0})
    assert result.history["accuracy"][-1] > 0.8


@on_grid
@pytest.mark.filterwarnings("ignore:FedNewton")
@pytest.mark.parametrize(("framework", "algorithm"), CASES)
def test_an_app_runs(framework, algorithm, tmp_path):
    for name, text in new_app.files("my-app", algorithm, framework).items():
        (tmp_path / name).write_text(text)
    result = played(tmp_path, **{"num-server-rounds": 2})
    first, last = result.history.rows
    assert (last["round"], last["replies"], last["dropped"]) == (2, 3, 0)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())
    measure = "train_loss" if framework == "torch" else "objective"
    if algorithm == "feddualavg":
        assert last[measure] < first[measure]


def test_flower_makes_bundles(written, tmp_path, monkeypatch):
    """In format 1, with this package among what is installed."""
    from flwr.cli.app import app as flwr

    monkeypatch.chdir(tmp_path)
    for folder in [*(ROOT / name for name in EXAMPLES), *sorted(written.iterdir())]:
        told = CliRunner().invoke(flwr, ["build", "--app", str(folder)])
        assert told.exit_code == 0, (folder, told.output)
        assert "missing" not in told.output
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        assert project["tool"]["flwr"]["app"]["fab-format-version"] == 1
        needed = project["project"]["dependencies"]
        named = [text.partition("[")[0].partition(">")[0] for text in needed]
        assert named == ["flwr", "flower-fedcon"]
        assert (folder / "LICENSE").read_text() == new_app.LICENSE
    assert len(list(tmp_path.glob("*.fab"))) == len(EXAMPLES) + len(FRAMEWORKS)


def test_a_study_s_app_is_the_hospitals(tmp_path, monkeypatch):
    """Of their experiment file the command writes their app; with a run's settings in it."""
    monkeypatch.chdir(ROOT)
    arguments = ["new", str(tmp_path / "heart"), "--study", "examples/heart/heart.toml"]
    told = CliRunner().invoke(fedcon, arguments)
    assert told.exit_code == 0, told.output
    assert "--data examples/heart/va.csv" in told.output.replace("\n", " ")
    for name in ("client_app.py", "server_app.py", "schema.toml", "LICENSE"):
        known = (ROOT / "examples" / "heart" / "app" / name).read_text()
        assert (tmp_path / "heart" / name).read_text() == known, name
    config = run_config(tmp_path / "heart")
    named = {key: config[key] for key in ("l1", "num-server-rounds", "weighting", "certificates")}
    assert named == {
        "l1": 0.02, "num-server-rounds": 8, "weighting": "examples", "certificates": True,
    }  # fmt: skip


SITES = ("north", "south", "west")
OUTCOMES = {
    "logistic": 'target = "y"\npositive = [1]\nnegative = [0]\ntest_fraction = 0.25',
    "poisson": 'target = "y"\nloss = "poisson"\ncomplete_cases = true',
    "cox": 'target = "t"\nevent = "y"\ncurve_times = [0.5, 1, 2]',
}


def write_study(folder, loss, lines):
    """Write a study of three files: `lines` stand below [problem]."""
    rng = np.random.default_rng(3)
    for site in SITES:
        rows = [
            f"{rng.exponential():.4f},{rng.integers(2)},{rng.normal():.3f},{rng.choice(['f', 'm'])}"
            for _ in range(60)
        ]
        rows += [f"0.5,{gap}" for gap in ("1,,f", "0,0.3,", "1,0.3,NA")]
        (folder / f"{site}.csv").write_text("\n".join(["t,y,x,sex", *rows]))
    features = '[features]\nx = "numeric"\nsex = "categorical"\n'
    (folder / "schema.toml").write_text(f"{OUTCOMES[loss]}\n{features}")
    (folder / "study.toml").write_text(
        f'[problem]\nname = "tables"\ndata = "*.csv"\nschema = "schema.toml"\n{lines}\n'
        "[run]\nrounds = 7\ncertificates = true\n"
    )


@on_grid
@pytest.mark.parametrize(
    ("loss", "lines", "said", "files"),
    [
        ("logistic", 'inference = "robust"\nsite_effects = "own"\nheterogeneity = true',
         ["alone"], ["heterogeneity.csv", "quality.json"]),
        ("poisson", "l1 = 0.01\nl2 = 0.02", ["ElasticNet"], []),
        ("cox", 'inference = "model"', ["baseline", "curves"], ["baseline.csv", "curves.csv"]),
    ],
)  # fmt: skip
def test_a_study_s_app_finds_what_the_study_finds(loss, lines, said, files, tmp_path, monkeypatch):
    """Its coefficients, errors and report, to the last bit, on nodes that allow what it says."""
    pytest.importorskip("flower_fedcon.tables", reason="studies are on tables")
    write_study(tmp_path, loss, lines)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(fedcon, ["run", "study.toml", "--run-dir", "here"]).exit_code == 0
    told = CliRunner().invoke(fedcon, ["new", "app", "--study", "study.toml"])
    assert told.exit_code == 0, told.output
    written = "".join(path.read_text() for path in Path("app").iterdir())
    assert all(word in written for word in said)
    readme = Path("app/README.md").read_text()
    assert ("AUC" in readme) == (loss == "logistic")  # alone it holds rows out
    assert "--run-config 'run-dir=" in readme  # without it results are lost
    words = shlex.split(told.output.split("\n", 1)[1])
    phases = words[words.index("--node-config") + 1]
    own = f"policy.min-cell=1 {phases}"
    nodes = [parse_config_args([f'data="{site}.csv" name="{site}" {own}']) for site in SITES]
    played(tmp_path / "app", nodes, **{"run-dir": "there"})
    for name in ["coefficients.csv", "report.txt", "model.json", "descriptives.csv", *files]:
        there = (tmp_path / "there" / name).read_text()
        assert there == (tmp_path / "here" / name).read_text(), name


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name = "tables"', 'name = "lasso"', ['name = "tables"', "'lasso'"]),
        ("[problem]", "[problem]\nl3 = 1.0", ["unknown key 'l3'"]),
        ("[problem]", '[problem]\npenalty = "group"', ["an app has no setting penalty"]),
        ("rounds = 7", "", ["rounds is missing"]),
        ("[run]", '[algorithm]\nname = "FedProx"\n[run]', ["[algorithm]", "server_app.py"]),
        ('schema = "no.toml"', "", ["the schema is missing"]),
        ("[run]", "[run]", ["cannot read the schema no.toml"]),
    ],
)
def test_a_study_that_no_app_can_hold_is_refused(old, new, words, tmp_path):
    pytest.importorskip("flower_fedcon.tables", reason="studies are on tables")
    study = '[problem]\nname = "tables"\nschema = "no.toml"\n[run]\nrounds = 7\n'
    (tmp_path / "study.toml").write_text(study.replace(old, new))
    with pytest.raises(ConfigError) as error:
        new_app.files_of_study(tmp_path / "app", tmp_path / "study.toml")
    assert all(word in str(error.value) for word in ["study.toml", *words])


def test_what_cannot_be_written_is_said(tmp_path):
    for given, words in (
        (("fedfw", "torch"), r"fedfw cannot correct a train loop.*client_app an"),
        (("fedavg", "torhc"), "did you mean 'torch'"),
        (("scafold", "torch"), r"did you mean 'scaffold'.*fedcon list"),
    ):
        with pytest.raises(ConfigError, match=words):
            new_app.files("a", *given)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for folder, said in (("full", "is not empty"), ("2nd_app", "not a name for a Flower app")):
        told = CliRunner().invoke(fedcon, ["new", str(tmp_path / folder)])
        assert isinstance(told.exception, ConfigError)
        assert said in str(told.exception)
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "notes.txt"]


@pytest.mark.nightly
@pytest.mark.ray
def test_flwr_run(written, tmp_path):
    with Simulation(tmp_path / "flower", 3) as simulation:
        for folder in sorted(written.iterdir()):
            output = simulation.run(folder, {"num-server-rounds": 2}, timeout=240).output
            assert "[ROUND 2/2]" in output
