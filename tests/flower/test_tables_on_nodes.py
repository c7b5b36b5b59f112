"""Tables on nodes: the numbers of this process, bit for bit, and nothing of a row in an error."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_grid import FakeGrid, asked, on_grid
from heart_files import FOLDER, SCHEMA
from hypothesis import given, settings
from hypothesis import strategies as st
from row_weights import LOSSES, pooled_model, write_sites
from row_weights import SCHEMA as WEIGHTED

from flower_fedcon import Policy, client_app, load_model, simulate
from flower_fedcon.engines.grid import GridEngine
from flower_fedcon.engines.patience import Patience
from flower_fedcon.errors import ConfigError, FedConError
from flower_fedcon.flower.grid_run import GridRun
from flower_fedcon.problems import heart
from flower_fedcon.regularizers import L1, WithIntercept
from flower_fedcon.runs.plan import Plan
from flower_fedcon.strategies import CompositeFL, FedAvg, FedDR, FedNewton, Scaffnew
from flower_fedcon.tables import Schema, Table, read_table, table_of_node
from flower_fedcon.tables.builders import tables
from flower_fedcon.tables.heart import HOSPITALS

PSI = WithIntercept(L1(0.02))


@cache
def read(path, schema):
    """What `table_of_node` does, once for each file."""
    return table_of_node(schema)(SimpleNamespace(node_config={"data": path}))


def make_grid(files, schema=SCHEMA, policy=None, **config):
    """A grid whose nodes read these files, with Flower's own policy unless another is given."""

    def make(load):
        return client_app(lambda context: read(context.node_config["data"], schema), policy=policy)

    grid = FakeGrid(files, make=make)
    for j, file in enumerate(files):
        node = grid.nodes[1000 - j].node_config
        node |= {"data": str(file), "name": file.stem, **config}
    return grid


@on_grid
def test_exchanges_before_round_1_count_as_requests(tmp_path):
    rows = "\n".join(f"{k},{k % 7},{k % 2}" for k in range(40))
    (tmp_path / "a.csv").write_text(f"u,v,y\n{rows}\n")
    schema = Schema.load({"target": "y", "features": {"u": "numeric", "v": "numeric"}})
    for most in (1, 30):
        config = {"state-dir": str(tmp_path / f"state {most}")}
        grid = make_grid([tmp_path / "a.csv"], schema, Policy(max_requests=most), **config)
        options = {"num_rounds": 1, "schema": schema, "evaluate_every": 0, "max_retries": 0}
        strategy = FedAvg(client_lr=0.1, local_steps=1)
        if most == 1:
            with pytest.raises(FedConError, match=r"policy\.max-requests = 1, and it has answered"):
                strategy.start(grid, **options)
            continue
        strategy.start(grid, **options)
        (noted,) = (tmp_path / f"state {most}").glob("requests/*")
        assert int(noted.read_text()) >= 3 + 1  # sums, spread, constants, and the round


HEART = [FOLDER / f"{name}.csv" for name in HOSPITALS]


METHODS = {
    "fednewton": lambda psi: FedNewton(psi),
    "feddr": lambda psi: FedDR(psi, step_size=3.0),
    "scaffnew": lambda psi: Scaffnew(client_lr=0.5, communication_probability=0.3, regularizer=psi),
    "compositefl": lambda psi: CompositeFL(psi, client_lr=0.1, local_steps=2),
}


@pytest.mark.parametrize("method", METHODS)
@on_grid
def test_nodes_find_what_this_process_finds(method, tmp_path):
    """Iterates, metrics, certificates, bytes and the report's files."""
    make, problem = METHODS[method], heart()
    result = make(PSI).start(
        make_grid(HEART, policy=Policy.open()), num_rounds=3, evaluate_every=2, seed=3,
        schema=SCHEMA, weighting="examples", certificates=True, run_dir=tmp_path / "nodes",
    )  # fmt: skip
    ours = simulate(
        make(problem.regularizer), problem, 3, evaluate_every=2, seed=3, certificates=True,
        run_dir=tmp_path / "here",
    )  # fmt: skip
    assert result.history.x.tobytes() == ours.x.tobytes()
    for row, other in zip(result.history.rows, ours.rows, strict=True):
        known = {k: v for k, v in row.items() if k not in ("seconds", "refused")}
        assert known == {k: v for k, v in other.items() if k not in ("seconds", "nonzeros")}
    assert result.history.report.text == ours.report.text
    assert "va (150 rows)" in ours.report.text
    assert "AUC of all sites' rows together: 0." in ours.report.text
    for name in ("coefficients.csv", "model.json", "quality.json", "report.txt"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "nodes" / name).read_bytes()


@on_grid
def test_a_large_site_is_no_warning(tmp_path, caplog):
    """Before: "if this number is wrong, give weighting="uniform"", a strategy's argument."""
    rows = {"large": 40, "small": 9, "third": 8}
    for name, n in rows.items():
        cells = [f"{i % 7},{i % 5}" for i in range(n)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,u", *cells]) + "\n")
    schema = Schema.load({"target": "y", "features": {"u": "numeric"}})
    grid = make_grid([tmp_path / f"{name}.csv" for name in rows], schema)
    with caplog.at_level("INFO", logger="flwr"):
        FedNewton(PSI).start(grid, num_rounds=1, schema=schema, weighting="examples")
    (said,) = [record for record in caplog.records if "% of the rows" in record.getMessage()]
    assert said.levelname == "INFO"
    assert "70.2% of the rows" in said.getMessage()
    assert 'weighting="uniform"' not in caplog.text


@on_grid
def test_nodes_write_predictions_for_their_own_rows_held_out(tmp_path):
    """Where their configuration names a folder, which the server does not see."""
    folder = tmp_path / "own"
    FedNewton(PSI).start(
        make_grid(HEART, **{"predictions-dir": str(folder)}), num_rounds=3, schema=SCHEMA,
        weighting="examples", run_dir=tmp_path / "run",
    )  # fmt: skip
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


@on_grid
def test_nodes_that_tell_no_statistics_are_named(tmp_path):
    """A run goes on without them; nothing of theirs is pooled."""
    options = {"policy.phases": "train,evaluate,prepare"}
    run = {"num_rounds": 2, "schema": SCHEMA, "weighting": "examples"}
    found = FedNewton(PSI).start(make_grid(HEART, **options), **run).history.report
    assert found.quality.pooled == {}
    assert all("policy.phases = train" in why for why in found.quality.absent.values())
    assert "quality on held-out rows: not known at any site" in found.text
    few = FedNewton(PSI).start(make_grid(HEART, **{"policy.min-rows": 20}), **run).history.report
    assert list(few.quality.sites) == ["cleveland", "hungarian"]  # the others have 2 and 14 without
    assert "not known: switzerland: too few held-out rows" in few.text


@on_grid
def test_nodes_find_sparse_rows_as_this_process_does(tmp_path, log):
    """Of a feature with many categories, some of which a policy withholds; without certificates."""
    rng = np.random.default_rng(0)
    for name in "ab":
        rows = [f"{rng.normal():.3f},z{int(300 * rng.random() ** 2)}" for _ in range(2000)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["y,zip", *rows]))
    schema = {"target": "y", "features": {"zip": "categorical"}}
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    grid = make_grid(files, Schema.load(schema), **{"policy.min-rows": 3})
    there = FedNewton(PSI).start(grid, num_rounds=3, schema=schema, weighting="examples").history
    problem = tables(data=list(map(str, files)), schema=schema, l1=0.02, min_rows=3)
    here = simulate(FedNewton(PSI), problem, 3)
    assert there.x.tobytes() == here.x.tobytes()
    assert len(problem.preparation.names) > 200
    assert here.report.reached.converged
    assert there.report.reached.converged is None
    assert "KKT residual: not known: certificates = true has the nodes say" in log.text


@given(seed=st.integers(0, 2**32 - 1), loss=st.sampled_from(sorted(LOSSES)))
@settings(max_examples=3)
@on_grid
def test_weights_of_rows_count_over_all_nodes(tmp_path_factory, seed, loss):
    """The model is the pooled one with `sample_weight`, and that of this process, bit for bit."""
    files, rows = write_sites(tmp_path_factory.mktemp("sites"), seed, loss)
    schema, strategy = WEIGHTED | LOSSES[loss], FedNewton(WithIntercept(L1(0.0)))
    grid = make_grid(list(map(Path, files)), Schema.load(schema))
    there = strategy.start(grid, num_rounds=12, schema=schema, weighting="examples").history
    here = simulate(strategy, tables(data=files, schema=schema), 12)
    assert there.x.tobytes() == here.x.tobytes()
    assert there.report.rows == here.report.rows
    per_unit = [own for _, _, own, *_ in there.report.rows]
    np.testing.assert_allclose(per_unit, pooled_model(loss, rows), rtol=1e-8, atol=1e-8)


@on_grid
def test_what_crosses_the_wire_before_round_1():
    """To the number: 2 p + 1 sums, two classes' rows, then p squares and the categories' rows."""
    grid = make_grid(HEART)
    FedDR(PSI, step_size=3.0).start(grid, num_rounds=1, schema=SCHEMA)
    sent = [asked(m) for m in grid.pushed]
    kinds = [config["action"] for config in sent]
    rounds = ["describe"] * 4 + ["prepare"] * 12 + ["train"] * 4 + ["evaluate"] * 4
    assert kinds[:24] == rounds
    assert set(kinds[24:]) == {"statistics"}  # of rows held out, at the end
    problem = heart()
    p, counts = 6, sum(len(f.categories) for f in SCHEMA.categorical)
    header = 128
    first = 8 + 2 * (header + 8 * p) + header + len("{}") + header + 2 * 8
    second = (header + 8 * p) + (header + 8 * counts)
    assert problem.preparation.uplink_bytes == 4 * (first + second)


@on_grid
def test_the_server_says_what_stands_out(log):
    """By the sums that it has; a class that nobody has is refused."""
    FedDR(PSI, step_size=3.0).start(make_grid(HEART), num_rounds=1, schema=SCHEMA)
    assert "tables: column 'chol': no values from switzerland, so the others' mean" in log.text
    other = Schema("age", {"sex": "categorical"}, positive=["old"])
    with pytest.raises(FedConError, match="no row of any client has a target 'age' of 'old'"):
        FedDR(PSI, step_size=3.0).start(make_grid(HEART, other), num_rounds=1, schema=other)


@on_grid
def test_a_node_logs_what_stands_out_in_its_rows(tmp_path, log):
    """Once in a run, and for itself: the server is told sums alone."""
    rows = "".join(f"{20 + j},{j % 2}\n" for j in range(20))
    (tmp_path / "a.csv").write_text(f"age,ill\n-999,1\n{rows}")
    schema = Schema("ill", {"age": "numeric"}, positive=[1], negative=[0])
    grid = make_grid([tmp_path / "a.csv"], schema)
    FedDR(PSI, step_size=1.0).start(grid, num_rounds=3, schema=schema)
    assert log.text.count("a.csv: column 'age': -999 (1 rows): if it stands for a missing") == 1


@on_grid
def test_a_node_with_few_rows_refuses(log):
    """By its own policy; the server cannot ask it to."""
    grid = make_grid(HEART)
    grid.nodes[998].node_config["policy.min-rows"] = 100  # Switzerland trains on 92
    with pytest.raises(FedConError, match=r"policy.min-rows = 100, and it has 92"):
        FedDR(PSI, step_size=3.0).start(grid, num_rounds=1, schema=SCHEMA, start_timeout=0.2)
    result = FedDR(PSI, step_size=3.0).start(
        grid, num_rounds=1, schema=SCHEMA, start_timeout=0.2, min_clients_to_start=3
    )
    assert "switzerland" not in result.history.report.text


@on_grid
def test_min_rows_of_nodes_and_of_this_process_agree():
    """Each node's own policy withholds what stands on fewer rows than 20."""
    nodes = make_grid(HEART, **{"policy.min-rows": 20})
    strategy = FedDR(PSI, step_size=3.0)
    there = strategy.start(nodes, num_rounds=2, schema=SCHEMA, weighting="examples").history
    problem = heart(min_rows=20)
    here = simulate(strategy, problem, 2, evaluate_every=10)
    assert here.x.tobytes() == there.x.tobytes()
    assert here.x.tobytes() != simulate(strategy, heart(), 2).x.tobytes()
    assert here["test_auc"][-1] == there["test_auc"][-1]
    assert "test_auc/switzerland" not in here  # too few are healthy there


@on_grid
def test_refusals_of_tables():
    """One sentence each."""
    strategy = FedDR(PSI, step_size=3.0)
    with pytest.raises(ConfigError, match="the clients have tables: give the server their schema"):
        strategy.start(make_grid(HEART), num_rounds=1)
    other = Schema("target", {"age": "numeric"}, positive=[1])
    with pytest.raises(ConfigError, match="client cleveland has another schema than the server"):
        strategy.start(make_grid(HEART), num_rounds=1, schema=other)
    grid = make_grid(HEART, **{"policy.phases": "train,evaluate"})
    with pytest.raises(FedConError, match=r"policy\.phases = train, evaluate, not prepare"):
        strategy.start(grid, num_rounds=1, schema=SCHEMA, max_retries=0)


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
SMALL = {
    "target": "ill",
    "positive": [1],
    "negative": [0],
    "features": {"age": {"type": "numeric", "range": [0, 120]}},
}


@pytest.mark.parametrize("case", BAD)
@on_grid
def test_nothing_of_a_row_leaves_a_node_in_an_error(case, tmp_path, log):
    """The node's own error names file, row, column and cell; what the server hears, the column."""
    content, expected = BAD[case]
    path = tmp_path / "SECRET.csv"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        read_table(path, Schema.load(SMALL))
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    grid = make_grid([path], Schema.load(SMALL), num_partitions=1)
    replies = []
    grid.alter = None
    whole = grid.replies_to
    grid.replies_to = lambda message: replies.append(whole(message)) or replies[-1]
    with pytest.raises(FedConError) as told:
        FedDR(PSI, step_size=1.0).start(grid, num_rounds=1, schema=SMALL, start_timeout=0.1)
    on_the_wire = " ".join(str(dict(r.content)) for found in replies for r in found)
    for text in (on_the_wire, str(told.value)):
        assert "its table cannot be read as the schema says" in text
        assert not any(word in text for word in ("SECRET", "4711", "row 1", "row 2", "51"))


@on_grid
def test_what_a_library_says_of_a_cell_stays_on_the_node(monkeypatch):
    """Whatever is raised while a table is prepared or trained on: the server hears its kind."""

    def fail(*_):
        raise ValueError("could not convert string to float: 'SECRET'")

    monkeypatch.setattr(Table, "matrix", fail)
    grid = make_grid(HEART)
    with pytest.raises(FedConError, match=r"ValueError \(.*\), see the node's own") as told:
        FedDR(PSI, step_size=1.0).start(grid, num_rounds=1, schema=SCHEMA, max_retries=0)
    assert "SECRET" not in str(told.value)


@on_grid
def test_a_run_on_tables_resumes(tmp_path):
    """What was agreed on is agreed on again, and is the same; other rows are refused."""
    strategy, common = FedDR(PSI, step_size=3.0), {"schema": SCHEMA, "weighting": "examples"}
    grid = make_grid(HEART)
    strategy.start(grid, num_rounds=2, run_dir=tmp_path / "a", **common)
    common |= {"run_dir": tmp_path / "a", "resume": True}
    resumed = strategy.start(grid, num_rounds=4, **common).history
    problem = heart()
    whole = simulate(strategy, problem, 4, evaluate_every=10)
    assert resumed.x.tobytes() == whole.x.tobytes()
    assert resumed["uplink_bytes"][-1] == whole["uplink_bytes"][-1]
    lines = HEART[0].read_text().splitlines()
    (tmp_path / "cleveland.csv").write_text("\n".join([*lines[:-1], lines[1]]))
    other = make_grid([tmp_path / "cleveland.csv", *HEART[1:]])
    with pytest.raises(FedConError, match="cannot resume"):
        strategy.start(other, num_rounds=5, **common)


def test_a_table_that_fits_no_loss_is_refused(tmp_path):
    """What the mathematics refuses, too: a Poisson target of -1, say, with its row and column."""
    (tmp_path / "a.csv").write_text("y,x\n1,2\n-1,3\n")
    schema = {"target": "y", "features": {"x": "numeric"}, "loss": "poisson"}
    with pytest.raises(
        ConfigError, match=r"a\.csv: row 2, column 'y': found '-1', expected a count"
    ):
        tables(data=[str(tmp_path / "a.csv")], schema=schema)


def test_rows_held_out_are_the_same_everywhere():
    """They depend on the schema and on the number of rows, and on nothing else."""
    table = read_table(HEART[0], SCHEMA)
    assert table.num_examples == 303 - round(0.25 * 303)
    assert np.setdiff1d(np.arange(303), table.training_rows)[:5].tolist() == held_first(303)


def held_first(m):
    order = np.random.default_rng([0, m]).permutation(m)[: round(0.25 * m)]
    return sorted(order.tolist())[:5]


@on_grid
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
