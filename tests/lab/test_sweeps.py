"""Sweeps of a parameter in claims files, and the powers that are fitted to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import ran, refusal
from left import PNG, begins

from flower_fedcon.lab.experiments import claims

CLAIMS = """
paper = "A paper"
figure = "Theorem 1"
source = "text"
bound = "theory"
seeds = [0, 1]

[sweep]
"problem.clients" = [1, 2, 4]
"run.rounds" = [6, 6, 9]

[[claim]]
what = "it grows"
measure = "scaling"
algorithm = "a"
column = "c"
near = 1.5
within = 1e-9
"""
EXPERIMENT = """
[problem]
name = "lasso"
[run]
rounds = 9
[algorithm]
name = "FedAvg"
label = "a"
client_lr = 0.1
local_steps = 1
batch_size = 2 # drawn by the seed
"""
FEDFW = CLAIMS.replace('"a"', '"FedFWPlus"').replace('"c"', '"objective"').replace("1e-9", "10.0")


@pytest.fixture(autouse=True)
def sims(request):
    """Have an experiment and a place for its claims in the folder of the command."""
    if "fedcon" in request.fixturenames:
        request.getfixturevalue("fedcon")
        Path("sims/claims").mkdir(parents=True)
        Path("sims/small.toml").write_text(Path("small.toml").read_text())


def judged(folder, text, histories=None):
    (folder / "claims").mkdir(exist_ok=True)
    (folder / "n.toml").write_text(EXPERIMENT)
    file = folder / "claims" / "n.toml"
    file.write_text(text)
    if histories is None:  # 8 n^1.5 after the last round, and twice that with seed 1
        histories = {
            ("a", seed, n): [{"round": r, "c": (1 + seed) * 8 * n**1.5 * (9 - r)} for r in (1, 8)]
            for seed in (0, 1)
            for n in (1.0, 2.0, 4.0)
        }
    return claims.Claims(file).judge(histories)


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ("", [1.5, 1.5]),
        ("of_mean = true", [1.5]),
        ("power = 0.5", [3.0, 3.0]),  # of the square root
        ("level = 100.0", [1.5, 1.5]),
        ('take = "least"', [1.5, 1.5]),
        ("at = [1, 4]", [1.5, 1.5]),
    ],
)
def test_exponents(tmp_path, keys, values):
    if "level" in keys:  # the round in which 800 n^1.5 / round is at most 100
        rounds = {1: 8, 2: 23, 4: 64}
        histories = {
            ("a", s, float(n)): [{"round": r, "c": 800 * n**1.5 / r} for r in range(1, 65)]
            for n in rounds
            for s in (0, 1)
        }
        (found,) = judged(tmp_path, CLAIMS + keys, histories)
        assert found.values == pytest.approx(values, rel=0.01)
        return
    (found,) = judged(tmp_path, CLAIMS + keys)
    assert found.values == pytest.approx(values, abs=1e-12)
    assert found.verdict == ("fail" if "power" in keys else "pass")


def test_other_measures_are_taken_at_every_place(tmp_path):
    claim = '[[claim]]\nwhat = "x"\nmeasure = "value"\nalgorithm = "a"\ncolumn = "c"\n'
    text = f"{CLAIMS}{claim}near = [8, 64, 16, 128]\nwithin = 1e-9\nat = [1, 4]\n"
    ratio = 'near = 1.0\nwithin = 1e-9\nper = "c"\n'
    _, chosen, every = judged(tmp_path, f"{text}{claim}{ratio}")
    assert (chosen.verdict, every.verdict) == ("pass", "pass")
    assert len(every.values) == 6


def test_a_sweep_is_run_and_drawn(fedcon):
    Path("sims/claims/small.toml").write_text(FEDFW)
    out = ran(fedcon, "reproduce", "small", "--workers", "1", "--figures", "drawn")
    assert "6/6: small: FedFWPlus, seed 1, at 4" in out
    assert begins("drawn/small.png", PNG)
    assert "figure: drawn/small.png" in out
    same = FEDFW.replace('"problem.clients" = [1, 2, 4]', '"compare.2.client_lr" = [1, 2, 4]')
    Path("sims/claims/small.toml").write_text(same.replace("[6, 6, 9]", "[6, 6, 6]"))
    _, out, _ = fedcon("reproduce", "small", "--workers", "1")
    assert "2/2: small: FedFWPlus" in out  # the same run at each place


def test_a_level_that_is_never_reached_fails(tmp_path):
    (found,) = judged(tmp_path, CLAIMS + "level = 0.0")
    assert found.verdict == "fail"
    (found,) = judged(tmp_path, CLAIMS + "level = [64, 182, 512]")  # as at n = 1: in round 1
    assert found.values[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[6, 6, 9]", "[6, 6]", "run.rounds has 2 values and problem.clients 3"),
        ("[1, 2, 4]", "[4, 2, 1]", "problem.clients must hold increasing numbers"),
        ("[1, 2, 4]", '["a", "b", "c"]', "problem.clients must be a number"),
        ("[6, 6, 9]", "6", "run.rounds must be a list"),
        ('"problem.clients" = [1, 2, 4]\n"run.rounds" = [6, 6, 9]', "", "needs a table [sweep]"),
        ("within = 10.0", "within = 10.0\nlevel = [1, 2]", "level has 2 numbers for 3 places"),
        ("problem.clients", "problem.client", "did you mean 'clients'"),
    ],
)
def test_errors_in_sweeps_are_one_line(fedcon, old, new, words):
    assert old in FEDFW
    Path("sims/claims/small.toml").write_text(FEDFW.replace(old, new, 1))
    assert words in refusal(fedcon, "reproduce", "small", "--workers", "1")
