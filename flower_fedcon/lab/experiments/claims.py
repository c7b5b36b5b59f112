"""The papers' claims, as files.

A claims file, ``sims/claims/NAME.toml``, belongs to an experiment file:

    paper = "..."
    figure = "Figure 1"
    experiment = "NAME.toml"            # the default: the file of the same name, a folder up
    requires = "u.data"                 # a file without which these claims are skipped
    few_seeds = "an hour each"          # why there are fewer than `MANY` where something is drawn
    rounds = 10000                      # of the full run; by default the experiment's
    algorithms = ["FedFW", "FedFWPlus"] # to run besides those that claims name
    set = ["run.evaluate_every=10"]     # overrides
    seeds = [0]
    vary = ["run.seed"]                 # what a seed sets

    [sweep]                             # optional: see `sweeps`
    "problem.clients" = [1, 4, 16]

    [[panel]]                           # optional: of a figure laid out as the paper's
    title = "(a) lasso"
    column = "residual"
    algorithms = ["FedFW", "FedFWPlus"]
    differs = "clients, sparsity and radius are ours"

    [quick]                             # replaces entries above in the quick run, or quick = false
    rounds = 1000

    [[claim]]
    says = "FedFW's residual is of order t^(-1/2)"  # what the source says; the default: what
    what = "exponent of t in FedFW's residual"      # what was run and measured
    where = "Theorem 1"                 # the default: figure
    source = "text"                     # who says so: one of `SOURCES`
    bound = "theory"                    # where the number below is from: one of `BOUNDS`
    measure = "slope"                   # one of `MEASURES`, with its own keys
    algorithm = "FedFW"
    column = "total"
    below = -0.5                        # or above, one for all seeds or one for each; or
                                        # near = ... and within = ... (relative)
    quick = {until = 1000}              # replaces entries, or false: not in the quick run
    companion = true                    # added, or cut, after a run, or no test; not counted
    why = "..."                         # of a part that holds: on what that depends, as other
    shown_by = "..."                    # claims show

    [claim.explained]                   # of a claim that does not hold; in quick, false: it does
    fault = "ours"                      # whose fault that is: one of `FAULTS`; "unknown" has no
                                        # shown_by, and counts as not explained
    why = "..."
    shown_by = "..."                    # what other claims say, which hold: of this file, or
                                        # "NAME: ..." of another one
    expected = -0.4                     # what is measured instead: one number, one for each, or
    worst = true                        # with this that of the worst alone
    tolerance = 0.1                     # relative

Claims of one paper that say the same, in any of its files, are parts of one claim. Its verdict is
the worst of those of its parts that are not companions.

An algorithm whose experiment file has a grid for it must lie inside that, not at an end.

A file can give `says`, `source` and `bound` for all its claims. If a claim covers several rounds,
algorithms or seeds, the worst of them counts. With `median = true` the median over the seeds
counts, and the table shows the range as well. With `of_mean = true` an exponent is that of the
mean over the seeds, and the table says so. For each claim that depends on random draws (data,
cohorts, batches or a method's own coins), the table states over how many seeds it was judged. A
claim with an explanation fails if a number differs from what the explanation expects. Columns are
those of the history, and "relative" (residual / |F*|), "bytes" and "megabytes" (up and down).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from flower_fedcon.errors import ConfigError, nearest
from flower_fedcon.lab.experiments.experiment import Experiment
from flower_fedcon.lab.experiments.figures import Curves
from flower_fedcon.lab.experiments.measures import MEASURES, Runs
from flower_fedcon.lab.experiments.sweeps import Scaling, Sweep, as_list
from flower_fedcon.lab.experiments.tuning import check_interior
from flower_fedcon.lab.experiments.verdicts import Verdict, judge, scaling, verdict_on
from flower_fedcon.runs.toml import read_toml
from flower_fedcon.runs.toml_schema import (
    Table,
    check_keys,
    check_table,
    check_type,
    context,
)
from flower_fedcon.validation import choice, count

SOURCES = {
    "text": "the paper's own text",
    "authors' code": "the authors' published code, its settings or what it prints",
    "secondary": "what reviews or later papers say of the paper",
    "ours": "no paper: a check, or a finding, of this collection",
}
BOUNDS = {
    "stated": "the source states this number",
    "theory": "it follows from a theorem, or is the order of its bound",
    "order": "no number was chosen: only who is ahead, 1 for a ratio and 0 for a difference",
    "independent": "another computation of the same formulas, or of the optimum",
    "measured": "the number, or the round or level at which it is judged, was set after a run",
}
MANY = 5
"""Number of seeds from which a claim counts as one over seeds."""
FAULTS = {
    "paper": "the claim does not hold, for any choice that the paper leaves open",
    "ours": "a setting that the paper leaves open, or a problem of ours, decides it",
    "data": "the paper's data are not available, and on these it does not hold",
    "unknown": "not known: the claim does not hold here, and no experiment shows why",
}
COUNTED = {
    "papers' claims": "what a source says",
    "companions": "what a source says, cut or set after a run, or to show why a claim of it fails",
    "ours": "checks and findings of this collection",
}
_NUMBERS = (int, float)
_TYPES: dict[str, Any] = {
    "says": str, "what": str, "where": str, "source": str, "bound": str, "measure": str,
    "explained": dict, "algorithm": str, "column": str, "over": str | list, "algorithms": list,
    "round": int | list,
    "level": float | list, "since": int, "of": str, "until": int, "below": float | list,
    "above": float | list, "near": float | list, "within": float, "fault": str, "why": str,
    "shown_by": str | list,
    "expected": float | list, "tolerance": float, "at": list, "per": str, "take": str,
    "power": float, "of_mean": bool, "over_round": int, "median": bool,
    "worst": bool, "terms": list, "companion": bool, "rising": bool, "changes": bool,
}  # fmt: skip
_NUMERIC = ("near", "below", "above", "round", "expected", "at", "level")
_THRESHOLDS = ("below", "above", "near")
_PROVENANCE = {"source": SOURCES, "bound": BOUNDS}
_EXPLAINED = ("fault", "why", "shown_by", "expected", "tolerance", "worst")
_SHARED = (
    "says", "what", "where", *_PROVENANCE, "measure", "explained", "quick", *_THRESHOLDS,
    "within", "at", "median", "companion", "why", "shown_by",
)  # fmt: skip
_OPTIONS: dict[str, Any] = {
    "rounds": int, "algorithms": list, "set": list, "seeds": list, "vary": list, "sweep": dict
}  # fmt: skip
_INHERITED = ("says", *_PROVENANCE)
_TEXTS = ("paper", "figure", "experiment", "requires", "few_seeds", *_INHERITED)
_PANEL: dict[str, Any] = {"title": str, "column": str, "algorithms": list, "differs": str}
_TOP = (*_TEXTS, *_OPTIONS, "panel", "quick", "claim")


class Claims:
    """A checked claims file.

    Parameters
    ----------
    path : path
    quick : bool
        Apply the entries for the quick run.

    Attributes
    ----------
    name, paper, figure, requires, few_seeds : str
    shown : list of str
        The claims that show why another one does not hold, or that are companions for themselves,
        each as "file: what".
    experiment : Path
    seeds : list of int
    sweep : Sweep
    panels : list of dict
        The tables [[panel]].
    skipped : bool
        Whether its claims are skipped: they are not in the quick run, or a file is missing.

    Raises
    ------
    ConfigError
        If an entry is missing, unknown or of the wrong type.
    """

    def __init__(self, path: Path, *, quick: bool = False) -> None:
        self.name, self._source = path.stem, str(path)
        self._at: dict[int, Experiment] = {}
        tables = read_toml(path)
        with context(self._source):
            check_keys(tables, _TOP)
            for key in _TEXTS:
                check_type(key, tables.get(key, ""), str)
            self.paper, self.figure = tables.get("paper", ""), tables.get("figure", "")
            file = tables.get("experiment", f"{path.stem}.toml")
            self.experiment = path.parent.parent / file
            changes = tables.get("quick", {})
            self.requires = tables.get("requires", "")
            self.few_seeds = tables.get("few_seeds", "")
            missing = bool(self.requires) and not Path(self.requires).exists()
            self.skipped = missing or (quick and changes is False)
            if changes is not False:
                check_table(changes, "[quick]")
                with context("[quick]"):
                    check_keys(changes, _OPTIONS)
            options = {key: tables[key] for key in _OPTIONS if key in tables}
            if quick and changes:
                options |= changes
            for key, value in options.items():
                check_type(key, value, _OPTIONS[key])
            self._options = options
            self.seeds = [count("seeds", s, minimum=0) for s in options.get("seeds", [0])]
            with context("[sweep]"):
                self.sweep = Sweep.of(options.get("sweep", {}))
            self.panels = list(tables.get("panel", []))
            for panel in self.panels:
                check_table(panel, "[[panel]]")
                with context("[[panel]]"):
                    if set(panel) != set(_PANEL):
                        raise ConfigError(f"its entries are {', '.join(_PANEL)}")
                    for key, value in panel.items():
                        check_type(key, value, _PANEL[key])
            given = tables.get("claim", [])
            if not isinstance(given, list) or not given:
                raise ConfigError("write [[claim]], in double brackets, for each claim")
            shared = {key: tables[key] for key in _INHERITED if key in tables}
            self.claims = []
            for i, table in enumerate(given, start=1):
                with context(f"[[claim]] {i}"):
                    claim = _checked(table, {"where": self.figure, **shared}, quick)
                    if claim is not None:
                        self.claims.append(claim)
            self.left_out = len(given) - len(self.claims)
            self.shown = _shown([{**shared, **claim} for claim in given], path)

    def overrides(self, seed: int, place: int = 0) -> tuple[str, ...]:
        """Return the overrides for `Experiment.load`."""
        texts = [str(text) for text in self._options.get("set", [])]
        if "rounds" in self._options:
            texts.append(f"run.rounds={self._options['rounds']}")
        if "seeds" in self._options:
            texts += [f"{key}={seed}" for key in self._varied]
        return (*texts, *self.sweep.overrides(place))

    def runs(self) -> list[tuple[tuple[Any, ...], Experiment]]:
        """Return the runs that the claims need: key, as in `Runs`, and experiment of each."""
        experiment = self._placed(0)
        with context(self._source):
            labels: list[str] = list(self._options.get("algorithms", []))
            for claim in self.claims:
                labels += _labels(claim)
            labels += [label for panel in self.panels for label in panel["algorithms"]]
            labels = list(dict.fromkeys(labels))
            shipped = Experiment.load(self.experiment)  # its grids belong to its own settings
            for label in labels:
                if label not in experiment.labels:
                    hint = nearest(str(label), experiment.labels)
                    raise ConfigError(f"{self.experiment} has no algorithm {label!r}: {hint}")
                check_interior(shipped, label)
        path = self.experiment.resolve()
        pairs: list[tuple[tuple[Any, ...], Experiment]] = []
        for seed in self.seeds:
            for place, where in enumerate(self.sweep.places(seed)):
                each = Experiment.load(path, self.overrides(seed, place))
                pairs += [((label, *where), each) for label in labels]
        return pairs

    def judge(self, runs: Runs) -> list[Verdict]:
        """Return a verdict for each claim."""
        verdicts = []
        for claim in self.claims:
            with context(self._source), context(claim["what"]):
                repeats = self.drawn(claim)
                seeds = self.seeds[:1] if 1 < self.repeats != repeats else self.seeds
                verdict = judge(claim, runs, seeds, self.name, self.sweep)
                verdicts.append(self._of_seeds(verdict, repeats))
        return verdicts

    def recall(self, claim: Table, stored: Table) -> Verdict:
        """Return the verdict on a claim as it was measured earlier, from `Verdict`'s attributes."""
        values = [math.inf if value is None else value for value in stored["values"]]
        end, note = stored["verdict"], stored["note"] if stored["verdict"] == "fail" else ""
        if end in ("explained", "not explained") and "explained" not in claim:
            raise ConfigError(f"{claim['what']} failed when it was measured: explain it, or run it")
        verdict = verdict_on(claim, self.name, stored["measured"], end, values, note)
        return self._of_seeds(verdict, self.drawn(claim))

    def _of_seeds(self, verdict: Verdict, seeds: int) -> Verdict:
        few = self.few_seeds if seeds < MANY else ""
        return replace(verdict, paper=self.paper, seeds=seeds, few_seeds=few)

    def drawn(self, claim: Table) -> int:
        """Return the number of seeds over which a claim is judged; 0 if nothing is random.

        If everyone takes part and methods draw nothing, only the data are random: one draw, if the
        seeds do not vary them. A number that was computed for the same data holds for these data
        only.
        """
        at = claim.get("at", [])
        places = [i for i, value in enumerate(self.sweep.values) if value in at] or [0]

        def draws(*, data: bool) -> bool:
            random = (self._placed(i).draws(label, data=data) for i in places for label in labels)
            return any(random)

        labels = _labels(claim)
        if draws(data="problem.seed" in self._varied and claim["bound"] != "independent"):
            return self.repeats
        return int(claim["bound"] != "independent" and draws(data=True))

    def _placed(self, place: int) -> Experiment:
        """Return the experiment of the first seed at a place of the sweep, read once."""
        if place not in self._at:
            with context(self._source):
                overrides = self.overrides(self.seeds[0], place)
                self._at[place] = Experiment.load(self.experiment, overrides)
        return self._at[place]

    @property
    def repeats(self) -> int:
        """The number of seeds of runs or data; "seeds" that vary anything else count as one."""
        return len(self.seeds) if all(key.endswith("seed") for key in self._varied) else 1

    @property
    def _varied(self) -> list[str]:
        """The settings that a seed varies."""
        return list(self._options.get("vary", ["run.seed"]))

    def curves(self, runs: Runs) -> list[Curves]:
        """Return the runs of the first seed that the tables [[panel]] draw."""
        (key, *_) = self.sweep.places(self.seeds[0])
        return [
            Curves(panel["title"], panel["column"],
                   {label: runs[(label, *key)] for label in panel["algorithms"]})
            for panel in self.panels
        ]  # fmt: skip

    def scalings(self, runs: Runs) -> list[Scaling]:
        """Return the data of the fits of claims with the measure "scaling", for a figure."""
        claims = [claim for claim in self.claims if claim["measure"] == "scaling"]
        return [scaling(claim, runs, self.seeds, self.sweep) for claim in claims]


def _labels(claim: Table) -> list[str]:
    """Return the algorithms that a claim is about."""
    keys = ("algorithm", "algorithms", "over")
    return [str(label) for key in keys for label in as_list(claim.get(key, []))]


def _checked(table: Any, shared: Table, quick: bool) -> Table | None:
    """Return a claim with the quick run's entries applied; None if it is not in that run."""
    check_table(table, "[[claim]]")
    if "measure" not in table:
        raise ConfigError(f"measure is missing: it is one of {', '.join(sorted(MEASURES))}")
    choice("measure", table["measure"], tuple(MEASURES))
    measure = MEASURES[table["measure"]]
    keys = (*_SHARED, *measure.required, *measure.optional)
    changes = table.get("quick", {})
    check_type("quick", changes, bool | dict)
    claim: Table = shared | {key: value for key, value in table.items() if key != "quick"}
    if isinstance(changes, dict):
        with context("quick"):
            check_keys(changes, keys)
            if quick:
                claim = _changed(claim, changes)
    check_keys(claim, keys)
    for key in ("what", *measure.required):
        if key not in claim:
            raise ConfigError(f"{key} is missing: the measure {table['measure']!r} needs it")
    _check_types(claim)
    for key, valid in _PROVENANCE.items():
        if key not in claim:
            raise ConfigError(f"{key} is missing: it is one of {', '.join(map(repr, valid))}")
        choice(key, claim[key], tuple(valid))
    if sum(key in claim for key in _THRESHOLDS) != 1:
        raise ConfigError("give one of below, above, and near")
    if ("near" in claim) != ("within" in claim):
        raise ConfigError("near and within belong together: near = 4619, within = 0.02")
    if "explained" in claim:
        if "why" in claim or "shown_by" in claim:
            raise ConfigError("of a claim that does not hold, why and shown_by are in explained")
        if claim.get("companion"):
            raise ConfigError(
                "a claim that does not hold cannot be a companion: drop one of the two"
            )
        with context("explained"):
            _check_explained(claim["explained"])
    return None if quick and changes is False else claim


def _changed(claim: Table, changes: Table) -> Table:
    """Return a claim with its entries replaced by those of the quick run."""
    if set(changes) & set(_THRESHOLDS):
        claim = {key: value for key, value in claim.items() if key not in _THRESHOLDS}
    explained = changes.get("explained", {})
    check_type("explained", explained, bool | dict)
    merged = claim | changes | {"explained": claim.get("explained", {}) | (explained or {})}
    if explained is False or not merged["explained"]:
        del merged["explained"]
    return merged


def _check_types(table: Table) -> None:
    for key, value in table.items():
        check_type(key, value, _TYPES[key])
        numbers = as_list(value) if key in _NUMERIC else []
        if not all(map(_is_number, numbers)):
            raise ConfigError(f"{key} holds numbers only")
    for term in table.get("terms", []):
        if not isinstance(term, list) or len(term) != 2 or not all(map(_is_number, term)):
            raise ConfigError(f"terms holds pairs of numbers, [c, p] for c t^p, got {term!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _check_explained(table: Table) -> None:
    check_keys(table, _EXPLAINED)
    shown = table.get("fault") != "unknown"
    needed = [key for key in _EXPLAINED if key != "worst" and (shown or key != "shown_by")]
    for key in needed:
        if key not in table:
            raise ConfigError(f"{key} is missing: an explanation has {', '.join(needed)}")
    _check_types(table)
    choice("fault", table["fault"], tuple(FAULTS))
    if "shown_by" in table and not shown:
        raise ConfigError(
            'fault = "unknown" contradicts shown_by: state whose fault it is, or leave shown_by out'
        )


def _shown(claims: Iterable[Table], path: Path) -> list[str]:
    """Return the companions, and the claims that show explanations, each "figure: claim".

    Raises
    ------
    ConfigError
        If one is not a claim that holds.
    """
    shown = [
        f"{path.stem}: {what}"
        for claim in claims
        if claim.get("companion")
        for what in _names(claim)
    ]
    own, siblings = _holding(claims), {file.stem: file for file in path.parent.glob("*.toml")}
    for claim in claims:
        ours = claim["source"] == "ours"  # a paper's statement remains the paper's
        for text in as_list(claim.get("explained", claim).get("shown_by", [])):
            name, _, what = text.partition(": ")
            holding, figure = own, path.stem
            if text not in own and name in siblings:
                holding, text = _holding(read_toml(siblings[name])["claim"]), what
                figure = name
            if text not in holding:
                with context(claim["what"]):
                    raise ConfigError(f"shown_by = {text!r} is not another claim that holds: "
                                      f"{nearest(text, holding)}")  # fmt: skip
            if not ours:
                shown.append(f"{figure}: {text}")
    return shown


def _names(claim: Table) -> list[str]:
    """Return a claim's text, and that of the quick run, if it has its own there."""
    quick = claim.get("quick")
    in_quick = quick.get("what") if isinstance(quick, dict) else None
    return [claim["what"], in_quick] if in_quick else [claim["what"]]


def _holding(claims: Iterable[Table]) -> list[str]:
    return [claim["what"] for claim in claims if "explained" not in claim]
