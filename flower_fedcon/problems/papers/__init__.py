"""The problems of the papers' experiments, and the table of builders for experiment files.

Most modules have one builder; four have code that several share. `image_files` reads the files of
MNIST and CIFAR-10, `hub` loads sets with flwr-datasets, `two_parts` handles training and test
images, and `sizes` checks the sizes of synthetic data.

A builder is a function that returns a `FederatedProblem`; its arguments are annotated, and given by
keyword. To add one, write it in a module here, import it below, and enter its name in
`flower_fedcon.problems.__all__`: its arguments are the keys that ``[problem]`` then accepts. A file
can also name a function of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import isfunction
from typing import Any, TypeAlias

from flower_fedcon.core.wings import loaded
from flower_fedcon.errors import ConfigError, nearest, repr_of
from flower_fedcon.problems.digits import digits as digits
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.files import files as files
from flower_fedcon.problems.papers.breast_cancer import neyman_pearson as neyman_pearson
from flower_fedcon.problems.papers.chr12a import chr12a as chr12a
from flower_fedcon.problems.papers.cifar10 import cifar10 as cifar10
from flower_fedcon.problems.papers.counterexample import counterexample as counterexample
from flower_fedcon.problems.papers.digits_network import digits_network as digits_network
from flower_fedcon.problems.papers.emnist import emnist as emnist
from flower_fedcon.problems.papers.facility import facility as facility
from flower_fedcon.problems.papers.fairness import fair_digits as fair_digits
from flower_fedcon.problems.papers.fairness import fair_heart as fair_heart
from flower_fedcon.problems.papers.fmri import fmri as fmri
from flower_fedcon.problems.papers.l1_logistic import l1_logistic as l1_logistic
from flower_fedcon.problems.papers.lasso import lasso as lasso
from flower_fedcon.problems.papers.low_rank import low_rank as low_rank
from flower_fedcon.problems.papers.many_clients import many_clients as many_clients
from flower_fedcon.problems.papers.mixture import mixture as mixture
from flower_fedcon.problems.papers.mnist import mnist as mnist
from flower_fedcon.problems.papers.mnist import mnist_images as mnist_images
from flower_fedcon.problems.papers.movielens import movielens as movielens
from flower_fedcon.problems.papers.multitask import multitask as multitask
from flower_fedcon.problems.papers.quadratics import quadratics as quadratics
from flower_fedcon.problems.papers.six_quadratics import six_quadratics as six_quadratics
from flower_fedcon.problems.papers.sparse_regression import sparse_regression as sparse_regression
from flower_fedcon.problems.papers.synthetic import synthetic as synthetic
from flower_fedcon.runs.toml import own_object

Builder: TypeAlias = Callable[..., FederatedProblem]

_OURS: dict[str, Builder] = {
    name: made
    for name, made in tuple(globals().items())
    if isfunction(made) and made.__annotations__.get("return") == FederatedProblem.__name__
}
"""The functions above that return a problem."""


def __getattr__(name: str) -> Any:
    if name == "BUILDERS":
        return builders()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def builders() -> dict[str, Builder]:
    """Return all builders by name, with those that wings bring.

    >>> {"heart", "lasso", "tables"} <= builders().keys()
    True
    """
    return dict(sorted({**_OURS, **loaded("BUILDERS")}.items()))


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
        function: Builder = own_object(name, "the problem")
        return function
    available = builders()
    if name not in available:
        raise ConfigError(
            f"unknown problem {name!r}: {nearest(str(name), available)}, or your own function as "
            f'"module:function"'
        )
    return available[str(name)]
