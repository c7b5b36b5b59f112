"""Decoding of brain images by sparse logistic regression: Haxby's sessions, or a stand-in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from flower_fedcon.errors import ConfigError, needing
from flower_fedcon.objectives import LogisticRegression
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.stated import stated
from flower_fedcon.regularizers import L1
from flower_fedcon.validation import Array, count, nonnegative

Session: TypeAlias = tuple[Array, Array]  # images (rows, voxels) and labels -1 or 1 (rows,)

SESSIONS = (12, 12, 12, 12, 11, 12)  # sessions of each subject
SHOWN = 9  # images of each class in a session


@stated
def fmri(
    *,
    data: str | None = None,
    classes: Sequence[str] = ("face", "house"),
    subjects: int = 6,
    clients: int | None = None,
    size: int = 12,
    displacement: float = 0.5,
    l1: float = 1e-3,
    seed: int = 0,
) -> FederatedProblem:
    """Return l1 logistic regression over the sessions of a study of brain images.

    A client is a session: the brain images under two kinds of stimuli, 9 of each, with labels for
    the stimuli. The last subject's sessions are held out. f_j is the mean logistic loss of session
    j, without a bias. Start 0. Metrics: "train_accuracy", "test_accuracy" and "density", the
    fraction of entries that are not 0.

    Parameters
    ----------
    data : str, optional
        nilearn's data folder, for the Haxby study of 2001; missing files are downloaded, 300 MB for
        each subject. The images are masked to the brain (some 40,000 voxels), and each voxel is
        standardised within each session. It needs the extra ``flower-fedcon[fmri]``. By default the
        data are synthetic: images of size^3 voxels of smooth noise, with a shift for each session.
        Each class raises a few voxels around its own place, which differs a little between
        subjects.
    classes : sequence of str
        The two kinds of stimuli of the study, labelled 1 and -1.
    subjects : int
        From 2 to 6; the last subject is held out, and 6 subjects leave 59 sessions.
    clients : int, optional
        Use only this number of sessions, the first ones; with 1, training is local.
    size : int
        Voxels along an edge of the synthetic images, at least 4.
    displacement : float
        The standard deviation of the places between subjects of the synthetic study, in voxels
        along each axis. With 0 the held-out subject has the same places as the others.
    l1 : float
        Weight of the regularizer.
    seed : int
        Seeds the synthetic images.

    Raises
    ------
    ConfigError
        If an argument is out of range, nilearn is missing, or the study cannot be read.

    Source: Yuan, Zaheer, Reddi, "Federated Composite Optimization", ICML 2021, Figures 1 and 7;
    Haxby et al., Science 293, 2001.

    >>> problem = fmri(subjects=2, size=4)
    >>> problem.num_clients, problem.x0.shape, problem.objectives[0].num_examples
    (12, (64,), 18)
    """
    if not 2 <= count("subjects", subjects) <= len(SESSIONS):
        raise ConfigError(f"subjects must be from 2 to {len(SESSIONS)}, got {subjects}: the last "
                          "one is held out")  # fmt: skip
    if len(classes) != 2 or len(set(classes)) != 2:
        raise ConfigError(f'classes must be two kinds of stimuli, such as ["face", "house"], '
                          f"got {classes!r}")  # fmt: skip
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    if data is None:
        by_subject = _synthetic(subjects, count("size", size, minimum=4),
                                nonnegative("displacement", displacement), rng)  # fmt: skip
    else:
        by_subject = _haxby(data, subjects, classes)
    train = [session for sessions in by_subject[:-1] for session in sessions]
    if clients is not None:
        if count("clients", clients) > len(train):
            raise ConfigError(f"clients must be at most the {len(train)} sessions, got {clients}")
        train = train[:clients]
    return FederatedProblem(
        [LogisticRegression(A, y) for A, y in train],
        regularizer=L1(nonnegative("l1", l1)),
        metrics={
            "train_accuracy": _accuracy(train),
            "test_accuracy": _accuracy(by_subject[-1]),
            "density": lambda x: float(np.count_nonzero(x)) / x.size,
        },
    )


def _accuracy(sessions: Sequence[Session]) -> Callable[[Array], float]:
    A = np.concatenate([images for images, _ in sessions])
    y = np.concatenate([labels for _, labels in sessions])
    return lambda x: float(np.mean(y * (A @ x) > 0))


# --- a synthetic study ---------------------------------------------------------------------------


def _synthetic(
    subjects: int, size: int, displacement: float, rng: np.random.Generator
) -> list[list[Session]]:
    """Return the sessions of each subject, voxels with noise of variance 1."""
    from scipy.ndimage import gaussian_filter

    def smooth(number: int) -> Array:
        """Return random fields of variance 1 with a correlation length of a voxel or two."""
        fields = gaussian_filter(
            rng.standard_normal((number, size, size, size)), (0, 1, 1, 1), mode="wrap"
        )
        return np.reshape(fields / fields.std(), (number, -1))

    grid = np.stack(np.meshgrid(*3 * [np.arange(size)], indexing="ij"), axis=-1).reshape(-1, 3)
    centres = rng.uniform(0.25, 0.75, (2, 3)) * (size - 1)
    y = np.repeat([1.0, -1.0], SHOWN)
    scans = []
    for sessions in SESSIONS[:subjects]:
        places = centres + displacement * rng.standard_normal((2, 3))
        raised = np.exp(-((grid - places[:, None]) ** 2).sum(axis=2) / 2)  # for each class
        scans.append([
            (
                rng.uniform(2.0, 3.0) * np.where(y[:, None] > 0, raised[0], raised[1])
                + 0.5 * smooth(1)
                + smooth(len(y)),
                y,
            )
            for _ in range(sessions)
        ])  # fmt: skip
    return scans


# --- Haxby's study -------------------------------------------------------------------------------


def _haxby(data: str, subjects: int, classes: Sequence[str]) -> list[list[Session]]:
    """Return the sessions of each subject, by nilearn."""
    what = "data of the Haxby study is read by nilearn"
    with needing(what, "fmri", "leave data out for the synthetic stand-in"):
        from nilearn.datasets import fetch_haxby
        from nilearn.maskers import NiftiMasker
    try:
        study: Any = fetch_haxby(data_dir=data, subjects=list(range(1, subjects + 1)), verbose=0)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot fetch the Haxby study into {data}: {error}") from None
    scans = []
    for images, targets in zip(study.func, study.session_target, strict=True):
        # A line for each image, after a header: the stimulus and the session's number.
        labels, numbers = np.loadtxt(targets, dtype=str, skiprows=1, usecols=(0, 1), unpack=True)
        missing = set(classes) - set(labels)
        if missing:
            raise ConfigError(f"classes names {sorted(missing)}, which the study does not have: "
                              f"it has {', '.join(sorted(set(labels)))}")  # fmt: skip
        runs = numbers.astype(int)
        masker = NiftiMasker(
            mask_img=study.mask, runs=runs, standardize="zscore_sample", detrend=True
        )
        voxels = np.asarray(masker.fit_transform(images), dtype=np.float64)
        kept = np.isin(labels, classes)
        y = np.where(labels == classes[0], 1.0, -1.0)
        scans.append([(voxels[kept & (runs == run)], y[kept & (runs == run)])
                      for run in np.unique(runs)])  # fmt: skip
    return scans
