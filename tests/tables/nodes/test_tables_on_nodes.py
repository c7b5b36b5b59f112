"""Tables on nodes: the numbers of this process, bit for bit, and nothing of a row in an error."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from fake_grid import FakeGrid, asked, on_grid
from heart_files import FOLDER, SCHEMA
from hypothesis import given, settings
from hypothesis import strategies as st
from row_weights import LOSSES, pooled_model, write_sites
from row_weights import SCHEMA as WEIGHTED
from table_nodes import make_grid, run_on, same_files, start, write_rows

from flower_fedcon import Policy, load_model, simulate
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.engines.patience import Patience
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower.grid_run import GridRun
from flower_fedcon.problems import heart
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.runs.plan import Plan
from flower_fedcon.strategies import CompositeFL, FedAvg, FedDR, FedNewton, Scaffnew
from flower_fedcon.tables import Schema, Table, read_table
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.heart import HOSPITALS

pytestmark = on_grid

PSI = WithIntercept(L1(0.02))
NEWTON, DR = FedNewton(PSI), FedDR(PSI, step_size=3.0)
HEART = [FOLDER / f"{name}.csv" for name in HOSPITALS]
UNWEIGHTED = {"weighting": "uniform"}


def test_exchanges_before_round_1_count_as_requests(tmp_path):
    file = write_rows(tmp_path / "a.csv", "u,v,y", [f"{k},{k % 7},{k % 2}" for k in range(40)])
    schema = Schema.load({"target": "y", "features": {"u": "numeric", "v": "numeric"}})
    options = {"made": FedAvg(client_lr=0.1, local_steps=1), "evaluate_every": 0, "max_retries": 0}

    def ask(most):
        node = {"state-dir": str(tmp_path / f"state {most}")}
        start([file], schema, 1, Policy(max_requests=most), node=node, **options)

    with pytest.raises(FedConError, match=r"policy\.max-requests = 1, and it has answered"):
        ask(1)
    ask(30)
    (noted,) = (tmp_path / "state 30").glob("requests/*")
    assert int(noted.read_text()) >= 3 + 1  # sums, spread, constants, and the round


METHODS = {
    "fednewton": lambda psi: FedNewton(psi),
    "feddr": lambda psi: FedDR(psi, step_size=3.0),
    "scaffnew": lambda psi: Scaffnew(client_lr=0.5, communication_probability=0.3, regularizer=psi),
    "compositefl": lambda psi: CompositeFL(psi, client_lr=0.1, local_steps=2),
}


@pytest.mark.parametrize("method", METHODS)
def test_nodes_find_what_this_process_finds(method, tmp_path):
    """Iterates, metrics, certificates, bytes and the report's files."""
    make, problem = METHODS[method], heart()
    common = {"evaluate_every": 2, "seed": 3, "certificates": True}
    there = start(HEART, SCHEMA, 3, Policy.open(), made=make(PSI), run_dir=tmp_path / "nodes",
                  **common)  # fmt: skip
    ours = simulate(make(problem.regularizer), problem, 3, run_dir=tmp_path / "here", **common)
    assert there.x.tobytes() == ours.x.tobytes()
    for row, other in zip(there.rows, ours.rows, strict=True):
        known = {k: v for k, v in row.items() if k not in ("seconds", "refused")}
        assert known == {k: v for k, v in other.items() if k not in ("seconds", "nonzeros")}
    assert there.report.text == ours.report.text
    assert "va (150 rows)" in ours.report.text
    assert "AUC of all sites' rows together: 0." in ours.report.text
    names = ("coefficients.csv", "model.json", "quality.json", "report.txt")
    same_files(tmp_path / "here", tmp_path / "nodes", *names)


def test_a_large_site_is_no_warning(tmp_path, log):
    """Before: "if this number is wrong, give weighting="uniform"", a strategy's argument."""
    files = [
        write_rows(tmp_path / f"{name}.csv", "y,u", [f"{i % 7},{i % 5}" for i in range(n)])
        for name, n in (("large", 40), ("small", 9), ("third", 8))
    ]
    start(files, Schema.load({"target": "y", "features": {"u": "numeric"}}), 1, made=NEWTON)
    (said,) = [record for record in log.records if "% of the rows" in record.getMessage()]
    assert said.levelname == "INFO"
    assert "70.2% of the rows" in said.getMessage()
    assert 'weighting="uniform"' not in log.text


def test_nodes_write_predictions_for_their_own_rows_held_out(tmp_path):
    """Where their configuration names a folder, which the server does not see."""
    folder = tmp_path / "own"
    node = {"predictions-dir": str(folder)}
    start(HEART, SCHEMA, 3, made=NEWTON, node=node, run_dir=tmp_path / "run")
    model = load_model(tmp_path / "run")
    assert len(list(folder.iterdir())) == 4
    for file in HEART:
        held = read_table(file, SCHEMA).held_out_rows
        (own,) = [path for path in folder.iterdir() if file.stem in path.name]
        with own.open() as lines:
            found = list(csv.DictReader(lines))
        assert [int(row["row"]) - 1 for row in found] == held.tolist()
        p = np.array([float(row["probability"]) for row in found])
        assert p == pytest.approx(model.predict_proba(file)[held, 1], rel=1e-12)
        y = np.array([int(row["outcome"]) for row in found])
        assert (y == (read_table(file, SCHEMA).targets[held] > 0)).all()


def test_nodes_that_tell_no_statistics_are_named():
    """A run goes on without them; nothing of theirs is pooled."""
    silent = {"policy.phases": "train,evaluate,prepare"}
    found = start(HEART, SCHEMA, 2, made=NEWTON, node=silent).report
    assert found.quality.pooled == {}
    assert all("policy.phases = train" in why for why in found.quality.absent.values())
    assert "quality on held-out rows: not known at any site" in found.text
    few = start(HEART, SCHEMA, 2, made=NEWTON, node={"policy.min-rows": 20}).report
    assert list(few.quality.sites) == ["cleveland", "hungarian"]  # the others have 2 and 14 without
    assert "not known: switzerland: too few held-out rows" in few.text


def test_nodes_find_sparse_rows_as_this_process_does(tmp_path, log):
    """Of a feature with many categories, some of which a policy withholds; without certificates."""
    rng, files = np.random.default_rng(0), []
    for name in "ab":
        rows = [f"{rng.normal():.3f},z{int(300 * rng.random() ** 2)}" for _ in range(2000)]
        files.append(write_rows(tmp_path / f"{name}.csv", "y,zip", rows))
    schema = {"target": "y", "features": {"zip": "categorical"}}
    there = start(files, Schema.load(schema), 3, made=NEWTON, node={"policy.min-rows": 3})
    problem = tables(data=list(map(str, files)), schema=schema, l1=0.02, min_rows=3)
    here = simulate(NEWTON, problem, 3)
    assert there.x.tobytes() == here.x.tobytes()
    assert len(problem.preparation.names) > 200
    assert here.report.reached.converged
    assert there.report.reached.converged is None
    assert "KKT residual: not known: certificates = true has the nodes say" in log.text


@given(seed=st.integers(0, 2**32 - 1), loss=st.sampled_from(sorted(LOSSES)))
@settings(max_examples=3)
def test_weights_of_rows_count_over_all_nodes(tmp_path_factory, seed, loss):
    """The model is the pooled one with `sample_weight`, and that of this process, bit for bit."""
    files, rows = write_sites(tmp_path_factory.mktemp("sites"), seed, loss)
    schema, strategy = WEIGHTED | LOSSES[loss], FedNewton(WithIntercept(L1(0.0)))
    there = start(list(map(Path, files)), Schema.load(schema), 12, made=strategy)
    here = simulate(strategy, tables(data=files, schema=schema), 12)
    assert there.x.tobytes() == here.x.tobytes()
    assert there.report.rows == here.report.rows
    per_unit = [own for _, _, own, *_ in there.report.rows]
    np.testing.assert_allclose(per_unit, pooled_model(loss, rows), rtol=1e-8, atol=1e-8)


def test_what_crosses_the_wire_before_round_1(log):
    """To the number: 2 p + 1 sums, two classes' rows, then p squares and the categories' rows."""
    grid = make_grid(HEART, SCHEMA)
    run_on(grid, SCHEMA, 1, made=DR, **UNWEIGHTED)
    kinds = [asked(m)["action"] for m in grid.pushed]
    rounds = ["describe"] * 4 + ["prepare"] * 12 + ["train"] * 4 + ["evaluate"] * 4
    assert kinds[:24] == rounds
    assert set(kinds[24:]) == {"statistics"}  # of rows held out, at the end
    p, counts = 6, sum(len(f.categories) for f in SCHEMA.categorical)
    header = 128
    first = 8 + 2 * (header + 8 * p) + header + len("{}") + header + 2 * 8
    second = (header + 8 * p) + (header + 8 * counts)
    assert heart().preparation.uplink_bytes == 4 * (first + second)
    # By these sums the server says what stands out.
    assert "tables: column 'chol': no values from switzerland, so the others' mean" in log.text


def test_a_node_logs_what_stands_out_in_its_rows(tmp_path, log):
    """Once in a run, and for itself: the server is told sums alone."""
    rows = [f"{20 + j},{j % 2}" for j in range(20)]
    file = write_rows(tmp_path / "a.csv", "age,ill", ["-999,1", *rows])
    schema = Schema("ill", {"age": "numeric"}, positive=[1], negative=[0])
    start([file], schema, 3, made=FedDR(PSI, step_size=1.0), **UNWEIGHTED)
    assert log.text.count("a.csv: column 'age': -999 (row 1): if it stands for a missing") == 1


def test_a_node_with_few_rows_refuses():
    """By its own policy; the server cannot ask it to."""
    grid = make_grid(HEART, SCHEMA)
    grid.nodes[998].node_config["policy.min-rows"] = 100  # Switzerland trains on 92
    options = {"made": DR, "start_timeout": 0.2, **UNWEIGHTED}
    with pytest.raises(FedConError, match=r"policy.min-rows = 100, and it has 92"):
        run_on(grid, SCHEMA, 1, **options)
    history = run_on(grid, SCHEMA, 1, min_clients_to_start=3, **options)
    assert "switzerland" not in history.report.text


def test_min_rows_of_nodes_and_of_this_process_agree():
    """Each node's own policy withholds what stands on fewer rows than 20."""
    there = start(HEART, SCHEMA, 2, made=DR, node={"policy.min-rows": 20})
    here = simulate(DR, heart(min_rows=20), 2, evaluate_every=10)
    assert here.x.tobytes() == there.x.tobytes()
    assert here.x.tobytes() != simulate(DR, heart(), 2).x.tobytes()
    assert here["test_auc"][-1] == there["test_auc"][-1]
    assert "test_auc/switzerland" not in here  # too few are healthy there


OLD = Schema("age", {"sex": "categorical"}, positive=["old"])
OTHER = Schema("target", {"age": "numeric"}, positive=[1])


@pytest.mark.parametrize(
    ("schema", "given", "node", "error", "words"),
    [
        (SCHEMA, None, {}, ConfigError, "the clients have tables: give the server their schema"),
        (SCHEMA, OTHER, {}, ConfigError, "client cleveland has another schema than the server"),
        (OLD, OLD, {}, FedConError, "no row of any client has a target 'age' of 'old'"),
        (SCHEMA, SCHEMA, {"policy.phases": "train,evaluate"}, FedConError,
         r"policy\.phases = train, evaluate, not prepare"),
    ],
    ids=["no schema", "another schema", "a class that nobody has", "phases"],
)  # fmt: skip
def test_refusals_of_tables(schema, given, node, error, words):
    options = {} if given is None else {"schema": given}
    with pytest.raises(error, match=words):
        DR.start(make_grid(HEART, schema, **node), num_rounds=1, max_retries=0, **options)


BAD = {
    "a word": ("age,ill\n51,1\nSECRET,0\n", "row 2, column 'age': found 'SECRET', expected a fin"),
    "a number": ("age,ill\n4711,1\n", "row 1, column 'age': found '4711', expected a number from"),
    "a label": ("age,ill\n51,4711\n", "row 1, column 'ill': found '4711', expected one of 1, 0"),
    "no target": ("age,ill\n51,\n", "row 1, column 'ill': found '', expected a value in every row"),
    "no header": ("4711,SECRET\n51,1\n", "no columns 'ill', 'age': it has 4711"),
    "a long row": ("age,ill\n51,1\n52,1,SECRET\n", "it cannot be read"),
    "thousands": ("age;ill\n4,711;1\n", "row 1, column 'age': found '4,711', expected 4711, or"),
    "no rows": ("age,ill\n", "found no rows"),
    "nothing": ("", "it cannot be read"),
    "bytes": ("age,ill\n\udcff,1\n", "it cannot be read"),
    "quotes": ('age,ill\n"SECRET,1\n', "it cannot be read"),
}
AGE = {"type": "numeric", "range": [0, 120]}
SMALL = {"target": "ill", "positive": [1], "negative": [0], "features": {"age": AGE}}


@pytest.mark.parametrize("case", BAD)
def test_nothing_of_a_row_leaves_a_node_in_an_error(case, tmp_path):
    """The node's own error names file, row, column and cell; what the server hears, the column."""
    content, expected = BAD[case]
    path = tmp_path / "SECRET.csv"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        read_table(path, Schema.load(SMALL))
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    grid, replies = make_grid([path], Schema.load(SMALL), num_partitions=1), []
    whole = grid.replies_to
    grid.replies_to = lambda message: replies.append(whole(message)) or replies[-1]
    with pytest.raises(FedConError) as told:
        FedDR(PSI, step_size=1.0).start(grid, num_rounds=1, schema=SMALL, start_timeout=0.1)
    on_the_wire = " ".join(str(dict(r.content)) for found in replies for r in found)
    for text in (on_the_wire, str(told.value)):
        assert "its table cannot be read as the schema says" in text
        assert not any(word in text for word in ("SECRET", "4711", "row 1", "row 2", "51"))


def test_what_a_library_says_of_a_cell_stays_on_the_node(monkeypatch):
    """Whatever is raised while a table is prepared or trained on: the server hears its kind."""

    def fail(*_):
        raise ValueError("could not convert string to float: 'SECRET'")

    monkeypatch.setattr(Table, "matrix", fail)
    with pytest.raises(FedConError, match=r"ValueError \(.*\), see the node's own") as told:
        start(HEART, SCHEMA, 1, made=FedDR(PSI, step_size=1.0), max_retries=0)
    assert "SECRET" not in str(told.value)


def test_a_run_on_tables_resumes(tmp_path):
    """What was agreed on is agreed on again, and is the same; other rows are refused."""
    grid, common = make_grid(HEART, SCHEMA), {"made": DR, "run_dir": tmp_path / "a"}
    run_on(grid, SCHEMA, 2, **common)
    resumed = run_on(grid, SCHEMA, 4, resume=True, **common)
    whole = simulate(DR, heart(), 4, evaluate_every=10)
    assert resumed.x.tobytes() == whole.x.tobytes()
    assert resumed["uplink_bytes"][-1] == whole["uplink_bytes"][-1]
    head, *lines = HEART[0].read_text().splitlines()
    other = write_rows(tmp_path / "cleveland.csv", head, [*lines[:-1], lines[0]])
    with pytest.raises(FedConError, match="cannot resume"):
        start([other, *HEART[1:]], SCHEMA, 5, resume=True, **common)


def test_a_table_that_fits_no_loss_is_refused(tmp_path):
    """What the mathematics refuses, too: a Poisson target of -1, say, with its row and column."""
    file = write_rows(tmp_path / "a.csv", "y,x", ["1,2", "-1,3"])
    schema = {"target": "y", "features": {"x": "numeric"}, "loss": "poisson"}
    words = r"a\.csv: row 2, column 'y': found '-1', expected a count"
    with pytest.raises(ConfigError, match=words):
        tables(data=[str(file)], schema=schema)


def test_rows_held_out_are_the_same_everywhere():
    """They depend on the schema and on the number of rows, and on nothing else."""
    table, held = read_table(HEART[0], SCHEMA), round(0.25 * 303)
    assert table.num_examples == 303 - held
    order = np.random.default_rng([0, 303]).permutation(303)[:held]
    assert np.setdiff1d(np.arange(303), table.training_rows).tolist() == sorted(order.tolist())


def test_ray_s_engine_counts_what_this_process_counts():
    """There the server has the problem, prepared, and its nodes objectives."""
    problem = heart()
    strategy = FedDR(problem.regularizer, step_size=3.0)
    engine = GridEngine(strategy, FakeGrid(problem.objectives), Patience(num_clients=4), problem)
    there = GridRun(strategy, engine).play(problem.x0, Plan(num_rounds=2)).history
    here = simulate(strategy, problem, 2)
    assert there.x.tobytes() == here.x.tobytes()
    for name in ("uplink_bytes", "downlink_bytes", "test_auc", "test_loss/va"):
        assert there[name].tolist() == here[name].tolist()
    # Nodes are numbered there, and named after their files here.
    assert there.report.rows == here.report.rows
    assert "va 0.7" in there.report.text
