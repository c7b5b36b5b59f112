"""`fedcon report`: what the page says of runs, whole and damaged, and how it looks in a browser."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tomllib
from collections import Counter

import numpy as np
import pytest
from browser import PROGRAM, Browser
from harness import ran, refusal
from pages import ROOT, blocks

from flower_fedcon import Buffered, Clock, FederatedProblem, Sample, simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.lab.report.contents import Curves, read_folders, read_run
from flower_fedcon.lab.report.curves import charts
from flower_fedcon.lab.report.exchanges import Map, read_exchanges
from flower_fedcon.lab.report.page import page, write_report
from flower_fedcon.lab.report.upload_shares import read_shares
from flower_fedcon.objectives import Quadratic
from flower_fedcon.runs.toml_schema import check_keys
from flower_fedcon.strategies import AREA, FedAvg
from flower_fedcon.wire.whole_files import FolderLock

HOSTILE = "</script><script>hacked=1</script><img src=x onerror=hacked=1>"


class Named(Quadratic):
    """Has a metric of its own."""

    def metrics(self, x):
        return {"size": (float(np.abs(x).sum()), 1.0)}


def run(folder, names=("a", "b", "c"), lr=0.5):
    """Leave a run of twelve rounds, two of three clients each, with its audit log."""
    clients = [Named(np.eye(2), np.array([b, 1.0])) for b in (0.0, 1.0, 2.0)]
    problem = FederatedProblem(clients, names=names)
    problem.optimum  # noqa: B018  (recorded from here on)
    strategy = FedAvg(client_lr=lr, local_steps=1, participation=Sample(count=2))
    simulate(strategy, problem, 12, run_dir=folder, audit=True)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("runs")
    return [run(home / "first"), run(home / "second", (HOSTILE, "b", "c"), lr=0.25)]


@pytest.fixture(scope="module")
def written(folders, tmp_path_factory):
    return write_report(folders, tmp_path_factory.mktemp("page") / "new" / "page.html")


def section(folders, title):
    """Return a section of the page of these folders."""
    text = page(read_folders(folders), "")
    return text.partition(f"<h2>{title}")[2].partition("</section>")[0]


def noted(folder, **files):
    """Leave what was noted of a run of one round, and further files."""
    for name, text in {"history_csv": "round,objective\n1,2.0\n", **files}.items():
        (folder / name.replace("_", ".")).write_text(text)
    return [folder]


# --- in a browser --------------------------------------------------------------------------------


@pytest.fixture
def browser(tmp_path):
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


@pytest.mark.skipif(PROGRAM is None, reason="no chromium on this machine")
def test_the_page_in_a_browser(browser, written):
    browser.open(written)
    progress = "document.querySelector('#charts .plot')"
    browser.until(f"{progress}.data.length === 2")

    offered = browser.run(
        "[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)"
    )
    assert "Pan" in offered
    assert not [title for title in offered if "hare" in title or "loud" in title]  # sends it away

    browser.click("#charts .legendtoggle")  # hides the first curve, and that alone
    browser.until(f"{progress}.data[0].visible === 'legendonly'")
    assert browser.run(f"{progress}.data[1].visible") is not False
    browser.until(f"{progress}.querySelectorAll('.scatterlayer .js-line').length === 1")
    browser.click("#charts [data-key=bytes]")  # another axis keeps it hidden
    browser.until(f"{progress}.layout.xaxis.title.text.startsWith('megabytes')")
    assert browser.run(f"{progress}.data[0].visible") == "legendonly"

    browser.click("#charts label:nth-child(4) [data-key=linear]")
    browser.until(f"{progress}.layout.yaxis.type === 'linear'")
    asked = browser.run(
        "document.querySelector('#maps .plot').data[0].z.flat().filter(v => v === 0).length"
    )
    assert asked == 12 * 2

    # Names are shown, and do nothing.
    browser.run("(s => { s.value = 1; s.onchange() })(document.querySelector('#maps select'))")
    first = "document.querySelector('#maps .plot').layout.yaxis.ticktext[0]"
    assert browser.until(first, lambda text: text.startswith("&lt;/script"))
    assert browser.run("typeof hacked") == "undefined"
    assert browser.run("document.querySelectorAll('script').length") == 3

    for width in (390, 1280):
        browser.resize(width)
        browser.until(f"document.documentElement.scrollWidth <= {width}")
        browser.until(f"{progress}.getBoundingClientRect().width < {width}")
    assert browser.errors == []
    assert [
        url for url in browser.requests if not url.startswith(("data:", written.as_uri()))
    ] == []


# --- what it says --------------------------------------------------------------------------------


def test_the_page_shows_hostile_names_as_text(written):
    text = written.read_text()
    assert text.count("</script>") == 3
    assert "<img src=x" not in text
    assert "&lt;img src=x" in text  # of the table of clients
    assert "default-src 'none'" in text


def test_the_page_s_settings_and_what_differs(folders):
    text = page(read_folders(folders), "")
    differs = text.partition("What differs")[2].partition("All settings")[0]
    assert "algorithm.client_lr" in differs
    assert "algorithm.local_steps" not in differs
    assert "algorithm.local_steps" in text
    assert "finished" in text


def test_a_chart_has_the_numbers_of_the_history(folders):
    by_title = {chart["title"]: chart["columns"] for chart in charts(read_folders(folders[:1]))}
    column = by_title["Progress"][0]
    assert column["key"] == "residual"
    rows = list(csv.DictReader((folders[0] / "history.csv").open()))
    (line,) = column["lines"]
    np.testing.assert_allclose(line["y"], [float(r["residual"]) for r in rows], rtol=1e-6)
    total = [(int(r["uplink_bytes"]) + int(r["downlink_bytes"])) / 1e6 for r in rows]
    np.testing.assert_allclose(line["x"]["bytes"], total, rtol=1e-6)
    each = by_title["Each client's metrics"][0]
    assert [line["name"] for line in each["lines"]] == ["a", "b", "c"]
    assert {c["key"] for c in by_title["Taking part, round by round"]} >= {"cohort", "replies"}


def test_epsilon_has_a_chart_of_its_own():
    rows = [{"round": i, "objective": 1.0, "epsilon": 0.1 * i} for i in range(1, 4)]
    assert "Privacy" in [chart["title"] for chart in charts([Curves("a", [], rows)])]


def test_runs_over_seeds_are_a_mean_and_a_band(tmp_path):
    for seed, objective in ((0, 1.0), (1, 3.0)):
        folder = tmp_path / "fedavg" / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "history.csv").write_text(f"round,objective\n1,{objective}\n")
    (curves,) = read_folders([tmp_path])
    (line,) = charts([curves])[0]["columns"][0]["lines"]
    assert (line["y"], line["low"], line["high"]) == ([2.0], [1.0], [3.0])
    assert "2 (1 to 3)" in page([curves], "")


def test_a_long_run_of_many_clients_stays_light():
    rng = np.random.default_rng(0)
    rows = [
        {"round": i, "objective": v, "violation": v, "seconds": v, "accuracy": v, "kkt": v}
        for i, v in enumerate(rng.random(100_000).tolist(), start=1)
    ]
    found = charts([Curves(str(k), [], rows) for k in range(8)])
    assert len(json.dumps(found)) < 2_500_000  # plotly takes 4.8 MB
    points = sum(len(line["y"]) for chart in found for c in chart["columns"] for line in c["lines"])
    assert 20_000 < points <= 60_000
    one = found[0]["columns"][0]["lines"][0]
    assert (one["x"]["rounds"][0], one["x"]["rounds"][-1]) == (1, 100_000)
    assert max(one["y"]) == pytest.approx(max(row["objective"] for row in rows))


def test_a_map_of_many_clients_and_rounds_has_few_cells():
    names = [str(j) for j in range(1001)]
    grid, asked = Map(names, columns=7), Counter()
    for server_round in range(1, 200, 3):
        grid.add("used", names[server_round], server_round)
        grid.add("silent", "1000", server_round)
        asked[(server_round - 1) // 32] += 1
    assert (grid.group, grid.width) == (6, 32)
    assert grid.counts.shape == (4, 167, 7)
    assert grid.counts[2, -1].tolist() == [asked[place] for place in range(7)]
    assert grid.counts[0].sum() == sum(asked.values())
    assert grid.labels[0] == "0 to 5"
    assert grid.labels[-1] == "996 to 1000"


def line(event, **content):
    return json.dumps({"event": event, **content}) + "\n"


def exchange(server_round, **what):
    told = {"asked": [], "used": {}, "dropped": {}, "lost": [], "silent": {}} | what
    return line("exchange", round=server_round, phase="train", attempt=1, **told)


def test_who_failed_when_and_why_is_counted(tmp_path):
    log = [
        line("start", clients={"a": {}, "b": {}}),
        exchange(1, used={"a": 40}, dropped={"b": "nan in v"}),
        exchange(1, used={"b": 40}),
        exchange(2, used={"a": 40}, silent={"b": "no reply"}),
        "{torn\n", '{"event": "exchange"}\n', "[]\n",
        line("end", round=2, error="too few replies"),
        '{"event": "exch',
    ]  # fmt: skip
    (tmp_path / "audit.1.jsonl").write_text("".join(log[:2]))
    (tmp_path / "audit.jsonl").write_text("".join(log[2:]))
    (tmp_path / "history.csv").write_text("round,objective\n1,2.0\n2,1.0\n")
    found = read_exchanges(tmp_path)
    assert found.map.counts.tolist() == [
        [[1, 1], [1, 0]], [[0, 0], [1, 0]], [[0, 0], [0, 1]], [[0, 0], [0, 0]]
    ]  # fmt: skip
    assert found.totals["b"] == {"used": 1, "dropped": 1, "silent": 1}
    assert found.sent == {"a": 80, "b": 40}
    assert found.reasons[("b", "dropped", "nan in v")] == 1
    assert (found.unreadable, found.error) == (3, "too few replies")
    text = page(read_folders([tmp_path]), "")
    for words in ("nan in v", "ended after round 2: too few replies", "3 lines of the audit log"):
        assert words in text


def test_a_run_that_goes_on_is_running(tmp_path):
    folder = run(tmp_path / "run")
    assert read_run(folder, "a").status == "finished"
    code = (
        "import sys; from pathlib import Path\n"
        "from flower_fedcon.wire.whole_files import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1])); print(); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdout.readline()
    assert read_run(folder, "a").status == "running"
    process.communicate()
    assert read_run(folder, "a").status == "finished"


# --- runs without rounds -------------------------------------------------------------------------


def flowing(folder, make, names=("a", "b", "c"), steps=40, **options):
    """Leave a run of steps with two replies each, whose third client is slow."""
    clients = [Quadratic(np.eye(2), np.array([b, 1.0])) for b in (0.0, 1.0, 2.0)]
    problem = FederatedProblem(clients, names=names)
    clock = Clock(compute=[1.0, 1.5, 8.0])
    strategy = make(client_lr=0.5, local_steps=1, participation=Buffered(buffer=2))
    simulate(strategy, problem, steps, clock=clock, run_dir=folder, **options)
    return folder


def test_each_client_s_share_is_that_of_the_log(tmp_path):
    """And the sentence on whom a biased method favours is that of the run."""
    folder = flowing(tmp_path / "run", FedAvg, (HOSTILE, "b", "c"))
    head, *events = [
        json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()
    ]
    used = [event for event in events if event.get("outcome") == "used"]
    shares = read_shares(folder)
    assert shares.names == list(head["clients"]) == [HOSTILE, "b", "c"]
    for client in range(3):
        own = [event["staleness"] for event in used if event["client"] == client]
        assert shares.used[client] == len(own) > 0
        assert shares.share(client) == pytest.approx(len(own) / 80)
        assert shares.age(client) == pytest.approx(np.mean(own))
        assert shares.oldest[client] == max(own)
    assert shares.clients == [0, 1, 2]
    assert (shares.steps, shares.seconds) == (40, used[-1]["seconds"])
    text = section([folder], "Each client’s share")
    assert "<script>hacked" not in text
    assert f">{shares.share(2):.1%} <" in text
    assert f"80 uploads in {shares.seconds:.6g} seconds, {40 / shares.seconds:.3g} steps a" in text
    assert "equal shares would be 33.3%" in text
    assert "Each client weighs as often as its replies come, so fast clients count more: " in text
    assert f"client c {shares.share(2):.1%}, where 33.3% would be equal" in text
    assert "Silent" not in text
    assert "At work since" not in text


def test_shares_that_do_not_matter_are_said_not_to(tmp_path):
    text = section([flowing(tmp_path / "run", AREA)], "Each client’s share")
    assert "Where this method ends does not depend on the shares." in text
    assert "would be biased" not in text
    (flat,) = (
        chart for chart in charts(read_folders([tmp_path / "run"])) if "part" in chart["title"]
    )
    assert {"staleness", "most_staleness", "waves"} <= {column["key"] for column in flat["columns"]}
    assert "simulated" in flat["columns"][0]["lines"][0]["x"]


EVENTS = [
    '{"seconds": 0.0, "wave": 1, "asked": [0, 1, 2], "step": 0}\n',
    '{"seconds": 2.0, "wave": 1, "client": 1, "outcome": "used", "staleness": 0, "step": 1}\n',
    '{"seconds": 2.0, "wave": 2, "asked": [1], "step": 1}\n',
    '{"seconds": 4.0, "wave": 1, "client": 0, "outcome": "used", "staleness": 1, "step": 2}\n',
    '{"seconds": 4.0, "wave": 3, "asked": [0], "step": 2}\n',
    '{"seconds": 5.0, "wave": 2, "client": 1, "outcome": "silent", "staleness": 1, "step": 2}\n',
]


def test_a_run_that_is_under_way_shows_who_is_at_work(tmp_path):
    """From an unfinished log without its first line, as of an earlier version."""
    text = '["seconds"]\n' + "".join(EVENTS) + '{"seconds": 6.0, "wa'
    (folder,) = noted(tmp_path, events_jsonl=text)
    with FolderLock(folder):
        text = page(read_folders([folder]), "")
        shares = read_run(folder, "a").shares
    assert shares.at_work == {0: 4.0, 2: 0.0}
    assert (shares.unreadable, shares.bias, shares.names) == (1, None, [])
    assert shares.unused["silent"] == {1: 1}
    assert shares.line(running=True) == (
        "2 uploads (steps old): 0 50.0% (1), 1 50.0% (0), 2 0.0% (0); 0.4 steps a second; "
        "2 at work, 2 since second 0 of 5"
    )
    assert "1 lines of the log of events cannot be read" in text
    part = text.partition("Each client’s share")[2].partition("</section>")[0]
    assert "At work since second" in part
    assert "depend on the shares" not in part
    again = "".join(EVENTS) + EVENTS[0].replace("1, ", "4, ", 1)  # the run has begun again
    (tmp_path / "events.jsonl").write_text(again)
    assert read_shares(tmp_path).at_work == {0: 0.0, 1: 0.0, 2: 0.0}


def test_many_clients_are_the_first_and_the_last(tmp_path):
    many = [json.dumps({"seconds": 1.0, "wave": 1, "client": c, "outcome": "used", "staleness": 0,
                        "step": 1}) for c in range(200) for _ in range(c + 1)]  # fmt: skip
    noted(tmp_path, events_jsonl="\n".join(many) + "\n")
    text = section([tmp_path], "Each client’s share")
    assert text.count("<tr>") == 1 + 50
    assert "50 of 200 clients are shown" in text
    line = read_shares(tmp_path).line(running=False)
    assert line.startswith("20,100 uploads (steps old): 199 1.0% (0), 198 1.0% (0), ")
    assert ", 180 between them, " in line


def test_coefficients_are_shown_by_name(tmp_path):
    pytest.importorskip("flower_fedcon.tables", reason="a run on tables")
    rows = "column,coefficient,per_unit\nage,1.0,-0.25\n<b>,0.5,0.125\nnone,0.0,0.0\n"
    part = section(noted(tmp_path, coefficients_csv=rows), "Coefficients")
    assert part.index(">age<") < part.index(">&lt;b&gt;<")
    assert "-0.25" in part
    assert "1 coefficient is 0" in part


def test_what_a_run_says_of_itself_is_shown_as_it_stands(tmp_path):
    pytest.importorskip("flower_fedcon.tables", reason="a run on tables")
    assert "In words" not in page(read_folders(noted(tmp_path)), "")
    words = "age  <1.5>\nheld out: north 5 & south 7\n"
    part = section(noted(tmp_path, report_txt=words), "In words")
    assert "<pre>age  &lt;1.5&gt;\nheld out: north 5 &amp; south 7\n</pre>" in part


HEADER = "column,coefficient,per_unit,odds_ratio,std_error,z,p_value,lower,upper"


@pytest.mark.parametrize(
    ("ends", "logs", "expected"),
    [
        ((0.157, 8.8), True, [0.2, 0.5, 1, 2, 5]),
        ((1e-3, 1e5), True, [1e-2, 1e-1, 1, 10, 100, 1e3, 1e4, 1e5]),
        ((0.95, 1.1), True, [0.96, 1, 1.04, 1.08]),
        ((-1.2, 3.4), False, [-1, 0, 1, 2, 3]),
    ],
)
def test_the_axis_has_round_numbers(ends, logs, expected):
    from flower_fedcon.lab.report.forest_plot import ticks

    found = ticks(*(np.log(ends) if logs else ends), logs)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("ratio", [True, False])
def test_intervals_are_drawn_as_a_forest_plot(tmp_path, ratio):
    pytest.importorskip("flower_fedcon.tables", reason="a run on tables")
    rows = [HEADER + ",odds_ratio_lower,odds_ratio_upper"]
    for name, value in (("<age>", np.log(2.0)), ("dose", -np.log(2.0))):
        ends = value - np.log(2.0), value + np.log(2.0)
        own = [value, value, np.exp(value), 0.35, 1.0, 0.3, *ends, *np.exp(ends)]
        rows.append(",".join([name, *map(repr, map(float, own))]))
    rows.append("(intercept),1.0,1.0,,0.1,1.0,0.3,0.8,1.2,,")
    if not ratio:
        rows = [",".join(c for j, c in enumerate(row.split(",")) if j not in (3, 9, 10))
                for row in rows]  # fmt: skip
    noted(tmp_path, coefficients_csv="\n".join(rows) + "\n")
    part = section([tmp_path], "Coefficients with 95 % intervals")
    assert "&lt;age&gt;" in part
    assert part.count("<circle") == (2 if ratio else 3)  # an intercept has no ratio
    if ratio:
        assert "2 (1 to 4)" in part
        assert "0.5 (0.25 to 1)" in part
        (first, second) = (float(cx.partition('"')[0]) for cx in part.split('cx="')[1:])
        assert first - second == pytest.approx(180.0)  # half of a logarithmic axis, 0.25 to 4
    else:
        assert "0.6931 (0 to 1.386)" in part
        assert "1 (0.8 to 1.2)" in part


def test_how_good_a_model_is_stands_by_site(tmp_path):
    pytest.importorskip("flower_fedcon.tables", reason="a run on tables")
    stated = {
        "sites": {"<north>": {"rows": 40.0, "auc": 0.75}}, "absent": {"south": "too few rows"},
        "pooled": {"rows": 40.0, "auc": 0.7421, "auc_error": 0.003, "calibration_slope": 0.9,
                   "calibration_slope_bse": 0.1},
        "roc": {"false_positive_rate": [0.0, 0.5, 1.0], "true_positive_rate": [0.0, 0.8, 1.0]},
        "calibration_curve": {"predicted": [0.2, 0.8], "observed": [0.1, 0.9]},
    }  # fmt: skip
    part = section(noted(tmp_path, quality_json=json.dumps(stated)), "On held-out rows")
    for shown in ("&lt;north&gt;", "0.7421", "0.9000 ± 0.1000", "an error of at most 0.003",
                  "Not known: south: too few rows",
                  "M30.0,250.0 L140.0,74.0 L250.0,30.0"):  # fmt: skip
        assert shown in part
    assert part.count("<circle") == 2


# --- what it cannot read -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("history.csv", "round,objective\n1,x\n", "is damaged in line 2"),
        ("history.csv", "", "has no round yet"),
        ("config.toml", "[run\n", "config.toml is not valid TOML"),
        ("config.toml", None, "config.toml is not there"),
        ("environment.json", "{", "environment.json is damaged"),
        ("environment.json", "[]", "environment.json is damaged"),
        ("coefficients.csv", "column\nage\n", "coefficients.csv is damaged"),
        ("quality.json", '{"sites": 1}', "quality.json is damaged"),
        ("audit.jsonl", "\x00\n", "1 lines of the audit log cannot be read"),
        ("events.jsonl", "\x00\n", "1 lines of the log of events cannot be read"),
    ],
)
def test_a_damaged_part_is_named_and_the_rest_is_shown(tmp_path, name, content, words):
    if name in ("coefficients.csv", "quality.json"):
        pytest.importorskip("flower_fedcon.tables", reason="of a run on tables")
    whole = {"history.csv": "round,objective\n1,2.5\n", "config.toml": "[run]\nrounds = 1\n",
             "environment.json": '{"python": "3.11", "packages": {"flwr": "1.41"}}'}  # fmt: skip
    for each, text in {**whole, name: content}.items():
        if text is not None:
            (tmp_path / each).write_text(text)
    text = page(read_folders([tmp_path]), "")
    missing = text.partition("What is missing")[2].partition("</section>")[0]
    assert words in missing
    assert (name == "history.csv") or ">2.5<" in text
    assert (name == "environment.json") or "1.41" in text


def test_what_is_no_run_and_no_page_is_refused(run_command, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert "empty holds no run" in refusal(run_command, "report", "empty")
    assert "nowhere holds no run" in refusal(run_command, "report", "nowhere")
    run(tmp_path / "one")
    assert "must end in .html" in refusal(run_command, "report", "one", "-o", "page.pdf")
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ConfigError, match=r"pip install 'flower-fedcon\[report\]'"):
        write_report([tmp_path / "one"], tmp_path / "page.html")


def test_the_command_shows_the_page(run_command, tmp_path, monkeypatch):
    run(tmp_path / "one")
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: shown.append(url) or False)
    out = ran(run_command, "report", "one", "--open")
    assert "page: one/report.html" in out
    assert "open the file" in out
    assert shown == [(tmp_path / "one" / "report.html").as_uri()]


def test_the_page_s_blocks(run_command, tmp_path):
    """What docs/report.md tells to type."""
    (tmp_path / "sims").symlink_to(ROOT / "sims")
    for command in blocks("bash", "docs/report.md")[0].splitlines():
        ran(run_command, *command.split()[1:])
    assert (tmp_path / "first.html").stat().st_size > 4_000_000
    (stated,) = blocks("toml", "docs/report.md")
    check_keys(tomllib.loads(stated)["run"], ("rounds", "audit"))
    assert (tmp_path / "runs" / "first" / "fedfw" / "audit.jsonl").exists()


def test_rounding_does_not_stretch_the_axes_of_a_page(tmp_path):
    """By the rule of `fedcon plot`; and ends of axes can be given."""
    text = "round,objective,residual,uplink_bytes,downlink_bytes,seconds\n"
    text += "".join(f"{n},1.0,{r},8.0,8.0,1.0\n" for n, r in enumerate((1.0, 3e-4, 1e-16), 1))
    curves = read_folders(noted(tmp_path, history_csv=text))
    progress = charts(curves)[0]["columns"]
    assert {column["key"]: column["least"] for column in progress} == {
        "residual": 1e-4, "objective": 0.0
    }  # fmt: skip
    text = page(curves, "", {"rounds": (0.0, 9.0)}, {"residual": (None, 2.0)})
    assert '"xlim":{"rounds":[0.0,9.0]},"ylim":{"residual":[null,2.0]}' in text
    for more, words in (
        ({"xlim": {"round": (0.0, 1.0)}}, "--xlim round: no curve has this axis: did you mean"),
        ({"ylim": {"residue": (0.0, 1.0)}}, "did you mean 'residual'"),
        ({"xlim": {"": (0.0, 1.0)}}, "name the axis, as in --xlim bytes=1,100"),
    ):
        with pytest.raises(ConfigError, match=words):
            page(curves, "", **more)
