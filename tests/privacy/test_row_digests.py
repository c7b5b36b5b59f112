"""Rows are known again in whatever order, type or form they come."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from flower_fedcon.objectives import HuberRegression, LeastSquares, LogisticRegression
from flower_fedcon.wire.ledgers import former_on_node, rows_on_node
from flower_fedcon.wire.row_digests import digest_of_rows


@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(1, 9))
def test_order_type_and_form_do_not_matter_and_every_entry_does(seed, m, d):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((m, d)) * (rng.random((m, d)) < 0.6)
    known = digest_of_rows(A)
    mixed = A[rng.permutation(m)]
    for same in (mixed, np.asfortranarray(mixed), mixed.astype("float32"),
                 scipy.sparse.csr_array(mixed), scipy.sparse.coo_array(A)):  # fmt: skip
        assert digest_of_rows(same) == known
    i, j = rng.integers(m), rng.integers(d)
    other = A.copy()
    other[i, j] += 1
    assert digest_of_rows(other) != known
    assert digest_of_rows(A[: m - 1]) != known
    assert digest_of_rows(np.vstack([A, A[:1]])) != known
    if d > 1 and not np.array_equal(A, swapped := A[:, ::-1]):
        assert digest_of_rows(swapped) != known or sorted(map(tuple, A)) == sorted(
            map(tuple, swapped)
        )


@given(st.integers(0, 2**32 - 1), st.floats(-6, 6))
def test_copies_in_half_precision_are_recognised(seed, size):
    """But for one made from double precision that rounds to other numbers than by way of single."""
    A = 10.0**size * np.random.default_rng(seed).standard_normal((20, 3))
    with np.errstate(over="ignore"):
        half = A.astype("float16")
        by_single = A.astype("float32").astype("float16")
    if not np.isfinite(half).all():
        return
    assert digest_of_rows(by_single) == digest_of_rows(A.astype("float32")) == digest_of_rows(A)
    if np.array_equal(half, by_single):
        assert digest_of_rows(half) == digest_of_rows(A)


def test_numbers_that_half_precision_does_not_hold_keep_single_precision():
    large = np.array([[70_000.0], [-1e30]])
    assert digest_of_rows(large) == digest_of_rows(large.astype("float32"))
    assert digest_of_rows(large) != digest_of_rows(large * (1 + 1e-5))


def test_a_digest_of_an_earlier_version_stays_known():
    A = np.random.default_rng(1).standard_normal((9, 4))
    former = former_on_node(LeastSquares(A, A[:, 0]))
    assert former[0] == "b99bb3abc19ae9cd"
    assert rows_on_node(LeastSquares(A, A[:, 0])) not in former


def test_every_study_of_the_same_rows_has_one_ledger():
    rng = np.random.default_rng(0)
    A, b = rng.standard_normal((30, 4)), np.sign(rng.standard_normal(30))
    studies = [
        LogisticRegression(A, b), LogisticRegression(A[::-1], b[::-1], l2=0.1, intercept=True),
        LeastSquares(A.astype("float32"), b), HuberRegression(scipy.sparse.csr_array(A), b + 1),
    ]  # fmt: skip
    torch = pytest.importorskip("torch")
    from flower_fedcon.torch import TorchObjective

    for kind in (torch.float32, torch.float64):
        net = torch.nn.Linear(4, 2).to(kind)
        studies.append(TorchObjective(net, torch.nn.CrossEntropyLoss(), (A, (b > 0).astype(int))))
    assert len({rows_on_node(study) for study in studies}) == 1
