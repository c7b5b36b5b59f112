"""The problems of the papers' experiments, and the table of builders for experiment files.

Most modules have one builder; four have code that several share. `image_files` reads the files of
MNIST and CIFAR-10, `hub` loads sets with flwr-datasets, `two_parts` handles training and test
images, and `sizes` checks the sizes of synthetic data.

A builder is a function that returns a `FederatedProblem`; its arguments are annotated, and given by
keyword. To add one, write it in a module here and enter it in the table: its arguments are the keys
that ``[problem]`` then accepts. A file can also name a function of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from flower_fedcon.core.wings import loaded
from flower_fedcon.errors import ConfigError, nearest, repr_of
from flower_fedcon.problems.digits import digits
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.files import files
from flower_fedcon.problems.papers.breast_cancer import neyman_pearson
from flower_fedcon.problems.papers.chr12a import chr12a
from flower_fedcon.problems.papers.cifar10 import cifar10
from flower_fedcon.problems.papers.counterexample import counterexample
from flower_fedcon.problems.papers.digits_network import digits_network
from flower_fedcon.problems.papers.emnist import emnist
from flower_fedcon.problems.papers.facility import facility
from flower_fedcon.problems.papers.fairness import fair_digits, fair_heart
from flower_fedcon.problems.papers.fmri import fmri
from flower_fedcon.problems.papers.l1_logistic import l1_logistic
from flower_fedcon.problems.papers.lasso import lasso
from flower_fedcon.problems.papers.low_rank import low_rank
from flower_fedcon.problems.papers.many_clients import many_clients
from flower_fedcon.problems.papers.mixture import mixture
from flower_fedcon.problems.papers.mnist import mnist, mnist_images
from flower_fedcon.problems.papers.movielens import movielens
from flower_fedcon.problems.papers.multitask import multitask
from flower_fedcon.problems.papers.quadratics import quadratics
from flower_fedcon.problems.papers.six_quadratics import six_quadratics
from flower_fedcon.problems.papers.sparse_regression import sparse_regression
from flower_fedcon.problems.papers.synthetic import synthetic
from flower_fedcon.runs.toml import own_object

Builder: TypeAlias = Callable[..., FederatedProblem]

_OWN: dict[str, Builder] = {
    "chr12a": chr12a,
    "cifar10": cifar10,
    "counterexample": counterexample,
    "digits": digits,
    "digits_network": digits_network,
    "emnist": emnist,
    "facility": facility,
    "fair_digits": fair_digits,
    "fair_heart": fair_heart,
    "files": files,
    "fmri": fmri,
    "l1_logistic": l1_logistic,
    "lasso": lasso,
    "low_rank": low_rank,
    "many_clients": many_clients,
    "mixture": mixture,
    "mnist": mnist,
    "movielens": movielens,
    "multitask": multitask,
    "neyman_pearson": neyman_pearson,
    "quadratics": quadratics,
    "six_quadratics": six_quadratics,
    "sparse_regression": sparse_regression,
    "synthetic": synthetic,
}

BUILDERS: dict[str, Builder] = dict(sorted({**loaded("BUILDERS"), **_OWN}.items()))

__all__ = [
    "BUILDERS",
    "Builder",
    "builder",
    "chr12a",
    "cifar10",
    "counterexample",
    "digits",
    "digits_network",
    "emnist",
    "facility",
    "fair_digits",
    "fair_heart",
    "files",
    "fmri",
    "l1_logistic",
    "lasso",
    "low_rank",
    "many_clients",
    "mixture",
    "mnist",
    "mnist_images",
    "movielens",
    "multitask",
    "neyman_pearson",
    "quadratics",
    "six_quadratics",
    "sparse_regression",
    "synthetic",
]


def builder(name: object) -> Builder:
    """Return the builder of that name, or the function that "module:function" names.

    The module is installed, or in the working directory.

    Raises
    ------
    ConfigError
        If there is no such builder or function.

    >>> builder("lasso") is lasso, builder("flower_fedcon.problems:lasso") is lasso
    (True, True)
    """
    if not isinstance(name, str):
        raise ConfigError(f"a problem's name must be a text, got {repr_of(name)}")
    if ":" in name:
        own: Builder = own_object(name, "the problem")
        return own
    if name not in BUILDERS:
        raise ConfigError(
            f"unknown problem {name!r}: {nearest(str(name), BUILDERS)}, or your own function as "
            f'"module:function"'
        )
    return BUILDERS[str(name)]
