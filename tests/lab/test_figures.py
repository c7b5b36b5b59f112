"""`fedcon plot`, and the figures of runs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from harness import ran, refusal
from left import PDF, PNG, begins

from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.experiments import figures
from flower_fedcon.lab.experiments.figures import _is_long, plot_histories
from flower_fedcon.lab.experiments.seed_statistics import mean


def test_plot(fedcon):
    fedcon("compare", "small.toml", "--rounds", "3")
    fedcon("run", "small.toml", "--rounds", "3", "--run-dir", "one")
    code, out, error = fedcon("plot", "one", "runs/small", "-o", "new/figure.pdf")
    assert (code, out, error) == (0, "figure: new/figure.pdf\n", "")
    assert begins("new/figure.pdf", PDF)
    command = ("plot", "one", "-o", "one.png", "-o", "one.pdf", "--x", "bytes", "--y", "total")
    assert fedcon(*command) == (0, "figure: one.png\nfigure: one.pdf\n", "")
    assert begins("one.png", PNG)
    counted = ("plot", "one", "-o", "two.png", "--x", "gradients,examples")
    assert fedcon(*counted) == (0, "figure: two.png\n", "")
    before = Path("one.pdf").read_bytes()
    assert b"/FontType 42" in before or b"/CIDFontType2" in before  # TrueType, not outlines
    fedcon(*command)
    assert Path("one.pdf").read_bytes() == before
    for arguments, words in (
        (["one", "-o", "a.png", "--y", "totl"], "did you mean 'total'"),
        (["one", "-o", "a.png", "--x", "round"], "did you mean 'rounds'"),
        (["one", "-o", "a.gif"], ".png, .pdf, .svg"),
        (["new", "-o", "a.png"], "new holds no run"),
    ):
        assert words in refusal(fedcon, "plot", *arguments)
    Path("one/history.csv").write_text("round,objective\n1,0.5\n")
    unheard = refusal(fedcon, "plot", "one", "-o", "a.png", "--x", "gradients")
    assert "gradients was not recorded by all runs" in unheard
    Path("one/history.csv").write_text("round,objective\n1,x\n")
    assert "one/history.csv is damaged in line 2" in refusal(fedcon, "plot", "one", "-o", "a.png")


@pytest.fixture
def passed_on(monkeypatch):
    """Collect the histories that the command would draw, and those of seeds."""
    seen = []

    def draw(histories, paths, seeds=None, **_):
        seen.append((histories, seeds))
        return paths[0]

    monkeypatch.setattr(figures, "plot_histories", draw)
    return seen


def test_plot_labels_runs_of_one_algorithm_apart(fedcon, passed_on):
    for folder in ("a", "b"):
        ran(fedcon, "run", "small.toml", "--rounds", "1", "--run-dir", folder)
    fedcon("plot", "a", "b", "b", "-o", "x.png")
    assert list(passed_on[-1][0]) == ["FedFW", "FedFW (b)", "FedFW (b) 2"]


def test_plot_takes_the_seeds_of_a_comparison_together(fedcon, passed_on):
    ran(fedcon, "compare", "small.toml", "--rounds", "2", "--seeds", "0,1,2", "--run-dir", "many")
    ran(fedcon, "run", "small.toml", "--rounds", "2", "--run-dir", "one")
    fedcon("plot", "many", "one", "many/fedfw/seed-1", "-o", "x.png")
    histories, seeds = passed_on[-1]
    labels = ["FedFW", "FedFWPlus", "Mirror, 2 steps"]  # in the order of the file
    assert list(histories) == [*labels, "FedFW (one)", "FedFW (many/fedfw/seed-1)"]
    assert list(seeds) == labels
    each = [own[-1]["residual"] for own in seeds["FedFW"]]
    assert len(each) == 3
    assert histories["FedFW"][-1]["residual"] == pytest.approx(np.mean(each))


def row(number, **values):
    """Return what is recorded of a round, these values and what it sent."""
    sent = {"uplink_bytes": 8.0, "downlink_bytes": 8.0, "seconds": 1.0, "objective": 1.0}
    return {"round": number, **sent, **values}


def rows(**columns):
    """Return two rounds or more with these columns."""
    many = {name: v if isinstance(v, list) else [v] * 2 for name, v in columns.items()}
    values = zip(*many.values(), strict=True) if many else [(), ()]
    return [row(n, **dict(zip(many, own, strict=True))) for n, own in enumerate(values, 1)]


@pytest.fixture
def drawn(monkeypatch):
    """Collect figures in place of writing them."""
    figures_drawn = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, _: figures_drawn.append(figure))
    return figures_drawn


def test_runs_that_are_over_early_are_not_squeezed():
    short, long = np.array([0.0, 1.0, 2.0]), np.array([0.0, 10.0, 17.0])
    assert _is_long([short, long], "bytes")
    assert not _is_long([short, long], "rounds")  # round 0: no logarithm
    assert not _is_long([short, long[:2]], "seconds")
    assert _is_long([short + 1, np.array([1.0, 101.0])], "rounds")
    assert not _is_long([np.zeros(3), long], "seconds")  # a clock that stood still


def test_figures_of_awkward_histories(tmp_path):
    converged = rows(residual=[1.0, 0.0, -1e-16], seconds=[0.0] * 3)
    all_negative = [row(1, objective=-1.0, residual=-1e-16)]
    unknown = rows(objective=[-float(n) for n in range(1, 30)])
    for own in (converged, all_negative, unknown):
        path = plot_histories({"a": own, "b": own}, tmp_path / "figure.png", title="t")
        assert path.stat().st_size > 1000
    plot_histories({"a": converged, "b": unknown}, tmp_path / "mixed.svg", x="rounds")
    with pytest.raises(ConfigError, match="no recorded rounds"):
        plot_histories({"a": []}, tmp_path / "figure.png")
    loops = [{"round": 1, "accuracy": 0.5, "downlink_bytes": 8.0}]
    words = r"no objective was recorded.*by --y .*accuracy, downlink"
    with pytest.raises(ConfigError, match=words):
        plot_histories({"a": loops}, tmp_path / "figure.png")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        plot_histories({"a": converged}, tmp_path / "file" / "figure.png")


def test_a_curve_that_cannot_be_drawn_is_named(tmp_path, caplog):
    ends = {"above": [1.0, 0.1], "below": [-0.1, -0.2], "reached": [1.0, 0.0],
            "rounded": [1.0, -2e-16]}  # fmt: skip
    histories, told = {name: rows(residual=values) for name, values in ends.items()}, []
    path = plot_histories(histories, tmp_path / "figure.svg", say=told.append)
    assert told == [
        "below: not drawn: residual <= 0, down to -0.2, has no logarithm",
        "reached: 1 of 2 points not drawn: residual is 0 up to rounding, so the optimum is reached",
        "rounded: 1 of 2 points not drawn: residual is 0 up to rounding, so the optimum is reached",
    ]
    plot_histories(histories, path)
    assert "below: not drawn" in caplog.text
    untold = [*told]
    plot_histories({"above": histories["above"]}, path, say=told.append)
    plot_histories(histories, path, y="objective", say=told.append)
    assert told == untold


def test_a_metric_on_held_out_rows_has_a_panel(tmp_path, drawn):
    path = tmp_path / "figure.png"
    alone = rows(**{"test_auc": 0.75, "test_accuracy": 0.5, "test_auc/a": 0.5, "test_auc/b": 1.0})
    plot_histories({"run": alone}, path)
    plot_histories({"run": alone, "other": rows(test_auc=0.25)}, path)
    plot_histories({"run": alone, "other": rows()}, path)
    plot_histories({"run": alone}, path, x="rounds", y="test_accuracy")
    labels = [[axis.get_ylabel() for axis in figure.axes] for figure in drawn]
    whole = ["objective  F", "", ""]
    assert labels == [[*whole, "test auc"]] * 2 + [whole, ["test accuracy"]]
    heights = [[float(line.get_ydata()[-1]) for line in f.axes[-1].lines] for f in drawn[:2]]
    assert heights == [[0.75, 0.5, 1.0], [0.75, 0.25]]
    legend = drawn[0].axes[-1].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["pooled", "a", "b"]


def test_plot_takes_all_that_a_comparison_left(fedcon):
    fedcon("compare", "small.toml", "--rounds", "3")
    everything = sorted(map(str, Path("runs/small").iterdir()))
    out = ran(fedcon, "plot", *everything, "-o", "all.png")
    assert "skipped, since they are not folders: config.toml, figure.pdf, figure.png" in out
    told = refusal(fedcon, "plot", "runs/small/config.toml", "-o", "all.png")
    assert "runs/small/config.toml is a file: name the folder" in told


def test_the_gap_is_drawn_where_no_optimum_is_known(tmp_path):
    def written(own, **options):
        return plot_histories({"a": own}, tmp_path / "a.svg", x="rounds", **options).read_bytes()

    certified = [{"round": n, "objective": 9.0, "fw_gap": gap} for n, gap in ((1, 5.0), (2, 1.0))]
    known = [own | {"residual": own["fw_gap"] / 2} for own in certified]
    assert written(certified) == written(certified, y="fw_gap")
    assert written(certified) not in (written(certified, y="objective"), written(known))
    assert written(known) == written(known, y="residual")


def test_words_of_panels_lie_apart(tmp_path, drawn):
    """In a column of a journal too, where a setting is longer than its panel is wide."""
    counted = dict.fromkeys(("uplink_bytes", "downlink_bytes"), 1e6)
    four = [{"round": float(r), "residual": 0.5**r, **counted} for r in range(1, 5)]
    rules = ("Markov stay 0.8 back 0.05", "Weighted weights examples count 6", f"{[0.25] * 90}")
    by = {f"A, {rule}": (rule, "A") for rule in rules}
    for width in (3.3, 6.9, None):
        plot_histories(dict.fromkeys(by, four), tmp_path / "f.pdf", x="bytes", by=by, width=width)
        figure = drawn.pop()
        figure.draw_without_rendering()
        shown = [axis for axis in figure.axes if axis.get_visible()]
        texts = [axis.title for axis in shown] + [axis.xaxis.label for axis in shown]
        boxes = [text.get_window_extent() for text in texts if text.get_text()]
        assert len(boxes) == (5 if width == 3.3 else 6)
        for box, other in itertools.combinations(boxes, 2):
            assert not box.overlaps(other)
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)


# --- where axes end ------------------------------------------------------------------------------


def test_rounding_does_not_stretch_a_logarithmic_axis(tmp_path, drawn):
    """The axis ends at the power of ten below the smallest value that is no rounding."""
    path, slow = tmp_path / "figure.png", rows(residual=[1.0, 0.1, 3e-3])
    for ends, bottom in (
        ([1.0, 1e-4, 1e-16], 1e-5),
        ([1.0, 2e-5, 0.0], None),  # a gap; no value is below
        ([1.0, 2e-9, 3e-12], None),  # as an F of 1 still shows
        ([1.0, 2e-9, 3e-13], 1e-9),
    ):
        told = []
        histories = {"fast": rows(residual=ends), "slow": slow}
        plot_histories(histories, path, x="rounds", say=told.append)
        low, high = drawn[-1].axes[0].get_ylim()
        if bottom is None:
            assert low > min(end for end in ends if end) / 10
        else:
            assert low == bottom
            assert "fast: 1 of 3 points below the axis: residual is rounding there" in told
        assert 1 < high < 10
    only = {"a": rows(residual=[1e-15, 2e-16])}  # nothing else to see
    plot_histories(only, path, x="rounds")
    assert drawn[-1].axes[0].get_ylim()[0] < 2e-16
    large = [row(n, objective=1e6 + r, residual=r) for n, r in enumerate((1e6, 1.0, 1e-7), 1)]
    plot_histories({"a": large}, path, x="rounds")
    assert drawn[-1].axes[0].get_ylim()[0] == 0.1
    zero = [row(n, objective=r, residual=r) for n, r in enumerate((1.0, 1e-6, 1e-11), 1)]
    plot_histories({"a": zero}, path, x="rounds")  # F* = 0: the last is no rounding
    assert drawn[-1].axes[0].get_ylim()[0] < 1e-11
    certificates = rows(kkt=[2.0, 1e-3, 1e-17])
    plot_histories({"a": certificates}, path, x="rounds", y="kkt")
    assert drawn[-1].axes[0].get_ylim()[0] == 1e-4
    relative = rows(residual=[1.0, 1e-2, 1e-16], relative=[100.0, 1.0, 1e-14])
    plot_histories({"a": relative}, path, x="rounds", y="relative")
    assert drawn[-1].axes[0].get_ylim()[0] == 0.1


def test_a_seed_at_the_optimum_does_not_stretch_a_band(tmp_path, drawn):
    seeds = [rows(residual=[1.0, 0.1, last]) for last in (1e-3, 1e-16)]
    plot_histories({"a": mean(seeds)}, tmp_path / "f.png", x="rounds", seeds={"a": seeds})
    assert drawn[-1].axes[0].get_ylim()[0] == 1e-4
    seeds = [rows(residual=[1.0, 0.1, last]) for last in (1e-3, 1e-8)]
    plot_histories({"a": mean(seeds)}, tmp_path / "f.png", x="rounds", seeds={"a": seeds})
    assert drawn[-1].axes[0].get_ylim()[0] < 1e-8


def test_a_long_line_is_drawn_where_the_axis_ends_early(tmp_path):
    """From 1,000 points on matplotlib cuts a line to the axis, and its marks were out of range."""
    numbers = [*range(1, 2000)]
    long = {"a": rows(residual=[1 / n for n in numbers], seconds=numbers)}
    path = plot_histories(long, tmp_path / "f.png", x="seconds", xlim={"": (0, 99)})
    assert begins(path, PNG)


def test_ends_of_axes_can_be_given(tmp_path, drawn):
    path, histories = tmp_path / "figure.png", {"a": rows(residual=[1.0, 1e-2, 1e-16])}
    plot_histories(histories, path, xlim={"bytes": (None, 1e-5)}, ylim={"residual": (1e-6, None)})
    rounds, sent, _ = drawn[-1].axes
    assert rounds.get_ylim()[0] == sent.get_ylim()[0] == 1e-6
    assert sent.get_xlim() == (0, 1e-5)
    assert rounds.get_xlim()[1] > 3
    plot_histories(histories, path, x="rounds", xlim={"": (1, 2)}, ylim={"": (None, 5.0)})
    assert drawn[-1].axes[0].get_xlim() == (1, 2)
    assert drawn[-1].axes[0].get_ylim() == (1e-3, 5.0)
    plot_histories(histories, path, x="rounds", ylim={"": (1e-20, 1.0)})
    assert drawn[-1].axes[0].get_ylim() == (1e-20, 1.0)
    long = {"a": rows(residual=[1 / n for n in range(1, 200)])}
    for ends, scale in (((1, 9), "log"), ((0, 9), "linear")):
        plot_histories(long, path, x="rounds", xlim={"rounds": ends})
        assert drawn[-1].axes[0].get_xlim() == ends
        assert drawn[-1].axes[0].get_xscale() == scale
    held = {"a": rows(residual=[1.0, 0.1], test_auc=[0.5, 0.75])}
    plot_histories(held, path, x="rounds", ylim={"": (1e-3, 1)})
    assert drawn[-1].axes[1].get_ylim()[0] > 0.4


def test_ends_of_axes_that_cannot_be(fedcon):
    ran(fedcon, "run", "small.toml", "--rounds", "3", "--run-dir", "one")
    for options, words in (
        (["--ylim", "1"], "write two increasing numbers"),
        (["--ylim", "2,1"], "write two increasing numbers"),
        (["--ylim", ","], "write two increasing numbers"),
        (["--ylim", "nan,1"], "write two increasing numbers"),
        (["--ylim", "0,1"], "--ylim: the axis is logarithmic: give ends above 0"),
        (["--xlim", "0,9"], "--xlim is for one of the panels' axes, rounds, bytes, seconds"),
        (["--xlim", "round=0,9"], "no panel has this axis: did you mean 'rounds'"),
        (["--kind", "roc", "--ylim", "0,1"], "--kind draws no history"),
    ):
        assert words in refusal(fedcon, "plot", "one", "-o", "a.png", *options)
    command = ("plot", "one", "-o", "a.png", "--x", "rounds", "--xlim", "1,2", "--ylim", "1e-3,")
    assert fedcon(*command) == (0, "figure: a.png\n", "")
