"""Synthetic(alpha, beta): softmax regression whose models and inputs differ between clients."""

from __future__ import annotations

import numpy as np

from flower_fedcon.core.protocol import EXAMPLES, WEIGHTINGS
from flower_fedcon.errors import ConfigError
from flower_fedcon.problems.federated import FederatedProblem
from flower_fedcon.problems.images import Images, softmax_problem
from flower_fedcon.problems.stated import stated
from flower_fedcon.validation import choice, count, nonnegative

_LEAST = 50  # rows of a client
_DECAY = -1.2  # of the inputs' variances


@stated
def synthetic(
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    iid: bool = False,
    clients: int = 30,
    rows: int | None = None,
    columns: int = 60,
    classes: int = 10,
    test_share: float = 0.1,
    weighting: str = "examples",
    l1: float | None = None,
    l1_radius: float | None = None,
    l2: float = 0.0,
    seed: int = 0,
) -> FederatedProblem:
    """Return Synthetic(alpha, beta), softmax regression.

    The data are those of Li et al., "Federated Optimization in Heterogeneous Networks", 2020.
    Client k's labels are argmax(W_k x + b_k), with entries of W_k and b_k from N(u_k, 1) and u_k ~
    N(0, alpha^2). In the paper, alpha is meant to control how much the clients' models differ. It
    does not, there or here: u_k adds the same number to all scores of a row, so alpha changes no
    label. The W_k differ as much at alpha = 0; with `iid` they are equal. Inputs x are N(v_k,
    diag(j^-1.2)), with entries of v_k from N(B_k, 1) and B_k ~ N(0, beta^2): beta controls how much
    the clients' data differ. The paper's sets are (0, 0), (0.5, 0.5) and (1, 1), and `iid`. As in
    the authors' program, alpha and beta are standard deviations, sizes are 50 plus a lognormal(4,
    2) number, and a tenth of each client's rows is held out. The model has shape (columns + 1,
    classes).

    Parameters
    ----------
    alpha, beta : float
        >= 0; not used with `iid`, where all clients share one W and b, from N(0, 1), and v_k = 0.
    iid : bool
    clients : int
        N >= 1.
    rows : int, optional
        Rows of each client, for clients of equal size.
    columns, classes : int
        d >= 1, and at least 2 classes.
    test_share : float
        The held-out share of each client's rows, in [0, 1).
    weighting : {"examples", "uniform"}
        Whether clients are weighted by their rows, as in the paper, or equally.
    l1, l1_radius, l2 : see `flower_fedcon.problems.digits`
    seed : int
        Seeds the data.

    Metrics: "test_accuracy" in [0, 1], if rows are held out; "sparsity", the fraction of entries
    with |x| <= 1e-8.

    >>> problem = synthetic(clients=4, columns=5, classes=3)
    >>> problem.num_clients, problem.x0.shape, [f.num_examples for f in problem.objectives]
    (4, (6, 3), [108, 82, 221, 105])
    """
    n, d = count("clients", clients), count("columns", columns)
    alpha, beta = nonnegative("alpha", alpha), nonnegative("beta", beta)
    k = count("classes", classes, minimum=2)
    held = nonnegative("test_share", test_share)
    if held >= 1:
        raise ConfigError(f"test_share must be in [0, 1), got {test_share!r}")
    choice("weighting", weighting, WEIGHTINGS)
    rng = np.random.default_rng(count("seed", seed, minimum=0))
    sizes = rng.lognormal(4, 2, n).astype(int) + _LEAST
    if rows is not None:
        sizes = np.full(n, count("rows", rows))
    means, shifts = alpha * rng.standard_normal(n), beta * rng.standard_normal(n)
    common = rng.standard_normal((d + 1, k))
    scale = np.arange(1, d + 1) ** (_DECAY / 2)
    inputs, labels = [], []
    for j in range(n):
        center = 0.0 if iid else shifts[j] + rng.standard_normal(d)
        model = common if iid else means[j] + rng.standard_normal((d + 1, k))
        x = center + scale * rng.standard_normal((sizes[j], d))
        inputs.append(x)
        labels.append(np.argmax(x @ model[:-1] + model[-1], axis=1))
    whole = Images(np.concatenate(inputs), np.concatenate(labels))
    starts = np.cumsum([0, *sizes])
    kept = [max(1, round((1 - held) * m)) for m in sizes.tolist()]
    training = [np.arange(start, start + m) for start, m in zip(starts, kept, strict=False)]
    tests = [
        np.arange(start + m, end) for start, m, end in zip(starts, kept, starts[1:], strict=False)
    ]
    weights = np.array(kept, float) if weighting == EXAMPLES else None
    return softmax_problem(
        whole,
        whole.take(np.concatenate(tests)),
        training,
        k,
        l1=l1,
        l1_radius=l1_radius,
        bias=True,
        l2=l2,
        weights=weights,
    )
