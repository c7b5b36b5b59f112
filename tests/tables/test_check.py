"""`fedcon data`: what does not fit, by file, row and column; and who holds what."""

from __future__ import annotations

from pathlib import Path

import pytest
from heart_files import FOLDER

from flower_fedcon.errors import ConfigError
from flower_fedcon.tables import Schema

SCHEMA = str(FOLDER / "schema.toml")


def test_all_that_does_not_fit_is_named(run_command, tmp_path):
    lines = (FOLDER / "va.csv").read_text().splitlines()
    lines[2] = lines[2].replace("44", "fortyfour")
    lines[4] = lines[4].replace(",4,", ",7,")
    (tmp_path / "bad.csv").write_text("\n".join(lines))
    path = str(tmp_path / "bad.csv")
    code, out, _ = run_command("data", "check", path, str(FOLDER / "va.csv"), "--schema", SCHEMA)
    assert code == 1
    told = " ".join(out.split())
    assert f"{path}: row 2, column 'age': found 'fortyfour', expected a finite number, or" in told
    assert f"{path}: row 4, column 'cp': found '7', expected one of 1, 2, 3, 4: correct" in told
    assert "va.csv fits: 150 rows to train on, 50 held out" in told


def test_what_a_node_would_tell(run_command):
    arguments = ("data", "check", str(FOLDER / "va.csv"), "--schema", SCHEMA, "--min-rows", "5")
    code, out, _ = run_command(*arguments)
    (ca,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["ca"]]
    assert (code, ca) == (0, ["ca", "va", "2", "198", "0", "0", "0", "nothing"])


def test_the_example_has_the_package_s_files():
    """A Flower app's bundle takes no links, so that its schema is a copy."""
    example = Path(__file__).parents[2] / "examples" / "heart"
    assert (example / "app" / "schema.toml").read_bytes() == Path(SCHEMA).read_bytes()
    for path in FOLDER.glob("*.csv"):
        assert (example / path.name).read_bytes() == path.read_bytes()


WRONG = {
    "typo": ({"targets": "y"}, "unknown key 'targets' of a schema: did you mean 'target'"),
    "no target": ({"features": {"x": "numeric"}}, "the schema lacks target"),
    "kind": ({"target": "y", "features": {"x": "number"}}, "feature 'x': type must be one of"),
    "key": ({"target": "y", "features": {"x": {"kind": 1}}}, "feature 'x': unknown key 'kind'"),
    "both": ({"target": "x", "features": {"x": "numeric"}}, "'x' is the target and cannot be a fe"),
    "fraction": (
        {"target": "y", "features": {"x": "numeric"}, "test_fraction": 1},
        r"test_fraction must be in \[0, 1\), got 1",
    ),
    "loss": (
        {"target": "y", "features": {"x": "numeric"}, "loss": "logistic"},
        'loss = "logistic" and positive = .* contradict',
    ),
    "range": (
        {"target": "y", "features": {"x": {"range": [2, 1]}}},
        r"feature 'x': range must be \[least, largest\]",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_schema_that_cannot_be_used_is_refused(case):
    table, words = WRONG[case]
    with pytest.raises(ConfigError, match=words):
        Schema.load(table)
