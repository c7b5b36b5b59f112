"""Every command and code block of the README does what it says; what a clone has besides."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile

import pytest
import yaml
from pages import ROOT, blocks
from pasting import bash

from flower_fedcon import __version__
from flower_fedcon.registry import algorithms, markdown_table

README = (ROOT / "README.md").read_text()


@pytest.fixture
def folder(tmp_path):
    """A folder that looks like the clone."""
    shutil.copytree(ROOT / "sims", tmp_path / "sims")
    return tmp_path


def test_first_command(folder):
    """The install is what continuous integration does; the rest runs here."""
    first = blocks("bash")[0]
    create, install, run = (part.strip() for part in first.split("&&"))
    assert create == "python3 -m venv .venv"
    assert install == '.venv/bin/pip install -e ".[dev]"'
    assert '-e ".[dev]"' in (ROOT / ".ci" / "run").read_text()
    output = bash(run.replace(".venv/bin/", ""), folder)
    shown = blocks("text")[0]
    for line in shown.splitlines():  # all but the seconds
        assert " ".join(line.split()[:-1]) in " ".join(output.split())
    assert (folder / "runs" / "digits_l1" / "figure.png").stat().st_size > 10_000


def test_second_command():
    assert blocks("bash")[1].strip() == ".venv/bin/pytest -n 2"
    assert '/bin/pytest" -n 2' in (ROOT / ".ci" / "run").read_text()


def test_python_block(capsys):
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out
    value, sent = re.search(r"F (\S+) with (\S+) bytes up", printed).groups()
    assert 0.341576 < float(value) < 0.5  # F* = 0.341576
    assert float(sent) == 100 * 10 * (8 * 650 + 128)


def test_the_study_of_four_hospitals(folder):
    pytest.importorskip("pandas", reason="needs pandas: pip install 'flower-fedcon[tables]'")
    shutil.copytree(ROOT / "examples" / "heart", folder / "examples" / "heart")
    output = bash(blocks("bash")[2], folder)
    assert "odds ratio" in output
    assert "pooled 0.8" in output


def test_it_is_short():
    assert len(README.splitlines()) <= 200


def test_algorithm_table():
    _, _, rest = README.partition("<!-- made by `fedcon list --markdown` -->\n")
    table = rest.partition("<!-- end -->")[0].strip()
    assert table == markdown_table(), "renew it: fedcon list --into README.md"


def test_every_algorithm_links_to_its_file():
    row = r"^\| \[(\w+)\]\(flower_fedcon/strategies/(\w+)\.py\)"
    linked = re.findall(row, README, re.MULTILINE)
    assert linked == [(kind.__name__, name) for name, kind in algorithms().items()]


def test_links_and_figure_exist():
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_workflow_runs_what_a_contributor_runs():
    assert "run: .ci/run\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    checks = (ROOT / ".ci" / "run").read_text()
    for line in ("ruff check .", "ruff format --check .", "mypy"):
        assert f'"$venv/bin/{line.split()[0]}"{line.removeprefix(line.split()[0])}\n' in checks
        assert f"$(BIN)/{line}\n" in (ROOT / "Makefile").read_text()


def test_releases_and_least_versions_are_in_the_workflows():
    """A release keeps no secret; what the jobs call is in the Makefile."""
    folder = ROOT / ".github" / "workflows"
    jobs = {path.stem: yaml.safe_load(path.read_text())["jobs"] for path in folder.glob("*.yml")}
    assert jobs.keys() == {"ci", "docs", "release"}
    assert jobs["release"]["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["release"]["publish"]["needs"] == "try"
    assert not re.search(r"secrets\.|password", (folder / "release.yml").read_text())
    matrix = jobs["ci"]["versions"]["strategy"]["matrix"]
    assert matrix["resolution"] == ["lowest-direct", "highest"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    assert matrix["python"] == named == jobs["release"]["try"]["strategy"]["matrix"]["python"]
    steps = [step.get("run", "") for own in jobs.values() for job in own.values()
             for step in job["steps"]]  # fmt: skip
    called = {found for run in steps for found in re.findall(r"^make (\w+)", run)}
    assert called == {"versions", "flower", "docs"}
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in called)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A wheel of the files that it needs, and one of the sdist of the same files."""
    pytest.importorskip("setuptools")
    source = tmp_path_factory.mktemp("source")
    for name in [
        "pyproject.toml",
        "setup.py",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
        "CITATION.cff",
    ]:
        shutil.copy(ROOT / name, source)
    left_out = shutil.ignore_patterns("__pycache__")
    for name in ("flower_fedcon", "sims"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=left_out)
    first = source / built(source, "wheel")
    sdist = source / built(source, "sdist")
    again = tmp_path_factory.mktemp("again")
    shutil.unpack_archive(sdist, again)
    (inside,) = again.iterdir()
    return first, inside / built(inside, "wheel")


def built(source, kind):
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}('.'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_runs_from_a_wheel_too(wheels):
    """A wheel has all that runs, the experiments too; one of the sdist has the same files."""
    names, again = (
        {info.filename: info.CRC for info in zipfile.ZipFile(wheel).infolist()} for wheel in wheels
    )
    assert wheels[0].name == f"flower_fedcon-{__version__}-py3-none-any.whl"
    assert names == again
    for file in (
        "strategies/fedfw.py", "clients/fedfw.py", "engines/grid.py", "py.typed", "CITATION.cff",
        "lab/report/page.js", "lab/report/page.css", "lab/report/page.html",
        "lab/sims/digits_l1.toml", "lab/sims/claims/digits_l1.toml", "lab/advice/studies.json",
        "problems/papers/chr12a.dat",
    ):  # fmt: skip
        assert f"flower_fedcon/{file}" in names
    meta = zipfile.ZipFile(wheels[0]).read(f"flower_fedcon-{__version__}.dist-info/METADATA")
    _, page = meta.decode().replace("\r", "").split("\n\n", 1)  # what an index of packages shows
    assert "[Flower](https://flower.ai)" in page
    assert not re.search(r"\]\((?!http)", page)
    assert "which method (`docs/which_method.md`)" in " ".join(page.split())
    assert "@software{flower_fedcon,\n  title = " in page
    assert len(page.splitlines()) > len(README.splitlines()) - 8
    told = "\n".join(names)
    assert not re.search(r"lab/sims/.*(\.(py|md|png)|pyproject\.toml)", told)
    assert not re.search(r"^(strategies|clients)/", told, re.MULTILINE)


@pytest.mark.nightly
def test_an_empty_environment_runs_the_wheel(wheels, tmp_path):
    """Needs the index of packages: pip installs what a node has, then what the README names."""
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / "bin"
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    env["COLUMNS"] = "200"

    def said(*command):
        done = subprocess.run(
            [scripts / command[0], *command[1:]], cwd=tmp_path, env=env, capture_output=True,
            text=True, timeout=900,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    (tmp_path / "readme.py").write_text(blocks("python")[0])
    code, told = said("pip", "install", str(wheels[1]))
    assert code == 0, told
    found = said("python", "-c", "import flower_fedcon as f; print(f.__file__)")[1]
    assert "flower_fedcon" in found
    code, told = said("fedcon", "doctor")
    assert code == 0, told
    assert "pip install 'flower-fedcon[simulation]'" in told
    code, told = said("python", "readme.py")
    assert code == 1
    assert "pip install 'flower-fedcon[estimators]'" in told
    assert '"flower-fedcon[cli]"' in README
    code, told = said("pip", "install", f"{wheels[1]}[cli]")
    assert code == 0, told
    code, told = said("python", "readme.py")
    assert code == 0, told
    assert re.search(r"F 0\.\d+ with \d+ bytes up", told)


def test_a_clone_needs_no_symbolic_links():
    """Where git makes none, as on Windows, `strategies` and `clients` are texts at the top."""
    folders = "benchmarks", "docs", "examples", "flower_fedcon", "sims", "tests"
    links = [path for name in folders for path in (ROOT / name).rglob("*") if path.is_symlink()]
    assert not links
    for copy in (ROOT / "examples" / "heart").glob("*.csv"):
        shipped = ROOT / "flower_fedcon" / "tables" / "data" / "heart" / copy.name
        assert copy.read_bytes() == shipped.read_bytes()


def test_the_paper_has_the_journal_s_form_and_cites_what_its_bibliography_has():
    paper = (ROOT / "paper.md").read_text()
    entries = re.findall(r"^@\w+\{(\w+),$", (ROOT / "paper.bib").read_text(), re.MULTILINE)
    assert set(re.findall(r"@(\w+)\b", paper)) == set(entries)
    assert len(entries) == len(set(entries))
    assert f"There are {len(algorithms())} of them" in paper
    for heading in ("Summary", "Statement of need", "State of the field", "References"):
        assert f"\n# {heading}\n" in paper
    assert 750 <= len(paper.split()) <= 1750  # the journal's form


def test_what_only_maintainers_know_is_marked_and_nowhere_made_up():
    for name in ("CODE_OF_CONDUCT.md", "SECURITY.md", "paper.md"):
        assert "**For the maintainers to fill in" in (ROOT / name).read_text(), name


def test_the_policies_link_to_what_there_is():
    for name in ("SUPPORT.md", "SECURITY.md", "CODE_OF_CONDUCT.md", ".github/GOOD_FIRST_ISSUES.md"):
        page = ROOT / name
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), (name, target)
        for path in re.findall(r"`((?:flower_fedcon|docs|tests)/[\w/.]+)`", page.read_text()):
            assert (ROOT / path).exists(), (name, path)
