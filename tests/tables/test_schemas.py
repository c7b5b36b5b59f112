"""Schemas: what they state, and what cannot be one."""

from __future__ import annotations

import json
import tomllib

import pytest
from pages import blocks
from tabular import numeric

from flower_fedcon.errors import ConfigError
from flower_fedcon.tables import Schema
from flower_fedcon.tables.families import names_of
from flower_fedcon.tables.noisy_sums import check_public

NEEDS = {"logistic": {"positive": ["yes"]}, "multinomial": {"classes": ["a", "b", "c"]},
         "cox": {"event": "e"}, "ordinal": {"levels": ["a", "b", "c"]}}  # fmt: skip
BASE = {"target": "y", "features": numeric("x", "u", c="categorical")}
COX = {"event": "e", "ties": "efron"}


def of(**more):
    return Schema.load(BASE | more)


@pytest.mark.parametrize("loss", names_of())
def test_a_schema_is_what_it_states(loss):
    schema = of(loss=loss, missing=["-9"], test_fraction=0.25, **NEEDS.get(loss, {}))
    again = Schema.load(json.loads(json.dumps(schema.stated)))
    assert again == schema
    assert again.digest == schema.digest


def test_without_complete_cases_a_schema_is_what_it_was():
    """Runs from before can be resumed."""
    plain, some = of(complete_cases=False), of(complete_cases=True)
    assert plain.digest == of().digest != some.digest
    assert "complete_cases" not in plain.stated
    assert Schema.load(some.stated) == some


def test_a_formula_and_a_list_of_terms_are_one_schema():
    formula, listed = of(formula="x * c + rcs(u, 4)"), of(terms=["x", "c", "rcs(u,4)", "x:c"])
    assert formula.digest == listed.digest
    assert Schema.load(formula.stated) == formula
    assert formula.names == ["x", "u", "c"]
    assert of(formula="x * c").names == ["x", "c"]


def test_the_page_s_schemas():
    schemas = [tomllib.loads(block) for block in blocks("toml", "docs/tables.md")]
    cox, both, ordinal = Schema.load(schemas[2]), schemas[4], Schema.load(schemas[3])
    assert (ordinal.loss, ordinal.levels) == ("ordinal", ("none", "mild", "severe"))
    assert (cox.loss, cox.target, cox.event) == ("cox", "months", "died")
    features = numeric("age", "chol", "dose", sex="categorical")
    assert set(both) == {"formula", "terms"}
    assert len({Schema("ill", features, **{key: own}).digest for key, own in both.items()}) == 1


REFUSED = [
    ({"targets": "y"}, "unknown key 'targets' of a schema: did you mean 'target'"),
    ({"features": {"x": "number"}}, "feature 'x': type must be one of"),
    ({"features": {"x": {"kind": 1}}}, "feature 'x': unknown key 'kind'"),
    ({"features": {"x": {"range": [2, 1]}}}, r"feature 'x': range must be \[least, largest\]"),
    ({"features": numeric("y")}, "'y' is the target and cannot be a fe"),
    ({"test_fraction": 1}, r"test_fraction must be in \[0, 1\), got 1"),
    ({"loss": "possion"}, "loss must be one of 'squared', .*got 'possion'"),
    ({"loss": "logistic"}, 'loss = "logistic" and positive = .* contradict'),
    ({"positive": [1], "negative": [0, 1]}, "positive and negative must differ, both hold"),
    ({"event": "e", "event_values": [1]}, "event_values must be two values"),
    ({"event_values": [1, 2]}, "event_values describes the column that event names"),
    ({"event": "y"}, "cluster, offset and exposure must be different columns, got y, y"),
    ({"cluster": "x"}, "'x' is the cluster and cannot be a feature, too"),
    # offsets
    ({"exposure": "e"}, "use offset"),
    ({"loss": "poisson", "exposure": "x"}, "cannot be a feature"),
    ({"loss": "poisson", "exposure": "e", "offset": "e"}, "different columns"),
    ({"classes": [0, 1], "offset": "e"}, "one linear predictor"),
    # times to events
    (COX | {"curve_times": [2, 1]}, "each later than the one before"),
    (COX | {"curve_times": [1], "curve_by": "x"}, "must be a categorical feature"),
    (COX | {"curve_by": "c"}, "curve_by needs curve_times"),
    ({"curve_times": [1]}, "curve_times is for loss"),
    ({"ties": "efron"}, "ties = .* is for loss"),
    (COX | {"ties": "exact"}, "'breslow', 'efron'"),
    # missing values
    ({"complete_cases": 1}, "complete_cases must be true or false, got 1"),
    ({"complete_cases": True, "features": {"x": {"missing": "median"}}},
     "complete_cases leaves out its missing"),
    ({"complete_cases": True, "terms": ["x", "missing(x)"]}, "leave one of the two out"),
    ({"features": {"c": {"type": "categorical", "missing": "median"}}}, "is for numeric features"),
    # terms
    ({"formula": "xx + c", "features": numeric("xy", c="categorical")},
     "'xx' .in xx. is not a feature: did you mean 'xy'"),
    ({"formula": "x + log(x)"}, 'write transform = "log" of the feature'),
    ({"formula": "x + bs(x)"}, r"bs\(\) in .* is not available: write rcs\(x, 4\)"),
    ({"formula": "x + offset(c)"}, 'write offset = "column"'),
    ({"formula": "x + (1 | ward)"}, r'site_effects = "random".* and cluster = "ward"'),
    ({"formula": "x - 1"}, "leaves out the intercept"),
    ({"formula": "other ~ x"}, "has the target other, and the schema's is 'y'"),
    ({"formula": "x +* c"}, "cannot be read"),
    ({"formula": "x", "terms": ["x"]}, "both define the model"),
    ({"terms": ["rcs(x, 2)"]}, "from 3 to 7, got 2"),
    ({"terms": ["rcs(x, [30, 20, 40])"]}, "in ascending order"),
    ({"terms": ["rcs(c, 4)"]}, "has a categorical feature"),
    ({"terms": ["poly(x, 9)"]}, "from 1 to 6, got 9"),
    ({"terms": ["poly(x, z)"]}, "'z' is neither a number"),
    ({"terms": ["x:poly(x, 2)"]}, "multiplies 'x' by itself"),
    ({"terms": ["x + c"]}, "is not a term"),
    ({"terms": [3]}, "a term must be text"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "words"), REFUSED)
def test_what_cannot_be_a_schema_is_refused_by_name(more, words):
    with pytest.raises(ConfigError, match=words):
        of(**more)


def test_a_schema_without_a_target_or_for_private_rows_is_refused():
    with pytest.raises(ConfigError, match="the schema lacks target"):
        Schema.load({"features": numeric("x")})
    words = "no noise protects the number of rows that complete_cases"
    with pytest.raises(ConfigError, match=words):
        check_public(of(loss="poisson", complete_cases=True))
