"""The sessions of brain images: the stand-in, and what is asked of nilearn."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flower_fedcon import simulate
from flower_fedcon.errors import ConfigError
from flower_fedcon.problems import BUILDERS, fmri
from flower_fedcon.strategies import FedDualAvg

VOXELS, RUNS = 6, (0, 1, 3)  # runs need not be consecutive


def test_the_stand_in_has_the_form_of_the_study():
    assert BUILDERS["fmri"] is fmri
    problem = fmri(size=8)
    assert problem.num_clients == 59
    assert {f.num_examples for f in problem.objectives} == {18}
    assert problem.x0.shape == (512,)
    assert problem.metrics["density"](np.eye(1, 512)[0]) == 1 / 512
    # The noise has variance 1, and a session's shift a quarter of that.
    rows = np.concatenate([f.A for f in problem.objectives])
    assert np.median(rows.var(axis=0)) == pytest.approx(1.25, rel=0.1)
    other = fmri(size=8, seed=1)
    assert not np.array_equal(rows[:18], other.objectives[0].A)
    assert np.array_equal(fmri(size=8, clients=7).objectives[6].A, problem.objectives[6].A)


@pytest.mark.parametrize(("displacement", "alike"), [(0.0, True), (2.0, False)])
def test_subjects_differ_by_their_displacement(displacement, alike):
    problem = fmri(subjects=3, size=8, displacement=displacement)
    differences = []  # between the classes' mean images, of each subject
    for first in (0, 12):
        own = problem.objectives[first : first + 12]
        A, y = (np.concatenate([getattr(f, name) for f in own]) for name in ("A", "y"))
        differences.append(A[y > 0].mean(axis=0) - A[y < 0].mean(axis=0))
    assert (np.corrcoef(differences)[0, 1] > 0.9) is np.bool_(alike)


def test_sessions_together_decode_the_held_out_subject_and_one_alone_less_well():
    accuracy = {}
    for clients in (1, 24):
        problem = fmri(subjects=3, size=8, clients=clients)
        strategy = FedDualAvg(problem.regularizer, client_lr=0.1, local_steps=10)
        history = simulate(strategy, problem, 50, evaluate_every=50)
        accuracy[clients] = history["test_accuracy"][-1]
    assert accuracy[24] > accuracy[1] + 0.1
    assert history["train_accuracy"][-1] > 0.9
    assert history["density"][-1] < 0.6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"displacement": -1.0}, "displacement must be finite and >= 0"),
        ({"subjects": 1}, "subjects must be from 2 to 6, got 1"),
        ({"subjects": 7}, "subjects must be from 2 to 6, got 7"),
        ({"subjects": 2, "size": 4, "clients": 13}, "at most the 12 sessions, got 13"),
        ({"subjects": 2, "size": 4, "clients": 0}, "clients must be"),
        ({"size": 3}, "size must be a whole number >= 4, got 3"),
        ({"classes": ["face"]}, "two kinds of stimuli"),
        ({"classes": ["face", "face"]}, "two kinds of stimuli"),
        ({"subjects": 2, "size": 4, "l1": -1.0}, "l1 must be"),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(ConfigError, match=words):
        fmri(**arguments)


# --- nilearn -------------------------------------------------------------------------------------


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Stand in for nilearn, with what its documentation says; collect what it is asked."""
    seen: list[dict[str, Any]] = []

    def fetch_haxby(data_dir=None, subjects=(2,), verbose=1):
        seen.append({"data_dir": data_dir, "subjects": subjects})
        if data_dir == "offline":
            raise ConnectionError("no route to host")
        targets = []
        for subject in subjects:
            lines = ["labels chunks"]
            for run in RUNS:
                lines += [f"{label} {run}" for label in ("rest", "face", "cat", "house", "house")]
            path = tmp_path / f"labels-{subject}.txt"
            path.write_text("\n".join(lines) + "\n")
            targets.append(str(path))
        return SimpleNamespace(
            func=[f"bold-{subject}.nii.gz" for subject in subjects],
            session_target=targets,
            mask="mask.nii.gz",
        )

    class NiftiMasker:
        def __init__(self, mask_img=None, runs=None, **options):
            self.asked = {"mask_img": mask_img, "runs": runs, **options}

        def fit_transform(self, imgs):
            seen.append({**self.asked, "imgs": imgs})
            subject = int(imgs.removeprefix("bold-").removesuffix(".nii.gz"))
            scans = len(self.asked["runs"])
            return (100 * subject + np.arange(scans * VOXELS, dtype=np.float32)).reshape(scans, -1)

    for name, content in {
        "nilearn": {},
        "nilearn.datasets": {"fetch_haxby": fetch_haxby},
        "nilearn.maskers": {"NiftiMasker": NiftiMasker},
    }.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return seen


def test_haxbys_study(asked):
    problem = fmri(data="folder", subjects=3)
    fetched, first, *_, last = asked
    assert fetched == {"data_dir": "folder", "subjects": [1, 2, 3]}
    assert (first["imgs"], last["imgs"]) == ("bold-1.nii.gz", "bold-3.nii.gz")
    assert (first["mask_img"], first["standardize"]) == ("mask.nii.gz", "zscore_sample")
    assert first["runs"].tolist() == [run for run in RUNS for _ in range(5)]

    # Two subjects of three runs each, of which face (1) and the two of house (-1) are kept.
    assert problem.num_clients == 6
    assert problem.x0.shape == (VOXELS,)
    client = problem.objectives[4]  # the second run of subject 2, scans 5 to 9
    scans = np.array([6, 8, 9])
    np.testing.assert_array_equal(client.A, 200 + VOXELS * scans[:, None] + np.arange(VOXELS))
    np.testing.assert_array_equal(client.y, [1, -1, -1])
    assert client.A.dtype == np.float64
    # Every image of subject 3 is labelled house by a negative model: right in 2 of 3.
    assert problem.metrics["test_accuracy"](-np.ones(VOXELS)) == pytest.approx(2 / 3)


def test_other_classes_and_refusals_of_the_study(asked):
    problem = fmri(data="folder", subjects=2, classes=["cat", "face"])
    np.testing.assert_array_equal(problem.objectives[0].y, [-1, 1])
    with pytest.raises(ConfigError, match=r"names \['hose'\].* it has cat, face, house, rest"):
        fmri(data="folder", subjects=2, classes=["face", "hose"])
    with pytest.raises(ConfigError, match="cannot fetch the Haxby study into offline: no route"):
        fmri(data="offline")


def test_without_nilearn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nilearn.datasets", None)  # its import fails
    with pytest.raises(ConfigError, match=r"pip install 'flower-fedcon\[fmri\]'"):
        fmri(data="folder")
