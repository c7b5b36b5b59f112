"""What all statistics of a site share: limits by the model's size, and how much they count."""

from __future__ import annotations

import numpy as np

from flower_fedcon.core.exchange import Site
from flower_fedcon.layout import Layout
from flower_fedcon.tables.quality import MOST_COUNTS
from flower_fedcon.tables.statistics.site_sums import (
    CLUSTER,
    KINDS,
    SAMPLED,
    free_parameters,
    most_numbers,
)
from flower_fedcon.wire.payloads import Payload


def check_parameters(site: Site, down: Payload, deviations: int) -> None:
    """Raise if the model has too many parameters for the site's rows.

    It is the site's own model: a server might send a smaller one.

    Raises
    ------
    RefusedError
    """
    shape = getattr(site.objective, "shape", np.shape(down["x"]))
    site.bounds.check_parameters(free_parameters(shape) + deviations, site.rows)


def of_clusters(down: Payload) -> bool:
    """Return whether a request for "estimates" is for sums over clusters, which may be small."""
    return float(down["method"]) % SAMPLED == KINDS[CLUSTER]


def models_apart(down: Payload) -> int:
    """Return the number of models at which a request for "apart" sums over rows.

    >>> models_apart({"at": np.zeros((3, 5))}), models_apart({})
    (3, 1)
    """
    return max(1, len(np.atleast_2d(down.get("at", 0.0))))


def most(layout: Layout) -> int:
    """Return the most entries of an array in an answer."""
    free = layout.size + 1  # with the deviation of random intercepts
    return max(most_numbers(free), MOST_COUNTS)
