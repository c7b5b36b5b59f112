"""DualFL with sampled clients in a hundred lines: the method, its bound, and what the proof needs.

    python docs/dualfl_sampling.py [RUNS [ROUNDS]]

It needs NumPy alone, and shares no line with the package. `dualfl_sampling.md` is the note.
"""

import sys

import numpy as np


def numbers(t, p, q, K):
    """Return sigma, r, chi, a, b, k of a round."""
    sigma = (1 - p / t) / (1 - p * p * q)
    r, chi = K * (1 - q) * t / (1 - q * t), (1 - p) * q * t * sigma / (1 - q * t)
    return sigma, r, chi, p * q * t * sigma, (1 - p * q * t) * sigma, 1 - 1 / t


def following(t, p, q):
    """Return the next t."""
    h = p * (1 - q * t * t)
    return (h + np.sqrt(h * h + 4 * t * t)) / 2


def constants(rule, N, rho, lost=0.0, frozen=True):
    """Return p, q, K of cohorts of C (an integer) or of Bernoulli(b) (a float).

    A reply is lost with probability `lost`; a round without any counts where it is not frozen.
    """
    if isinstance(rule, int):
        p, K, used = (1 - lost) * rule / N, N / rule, 1 - lost**rule
    else:
        drawn = 1 - (1 - rule) ** N
        p, K = (1 - lost) * rule / drawn, N / (rule * N + 1 - rule)
        used = (1 - (1 - (1 - lost) * rule) ** N) / drawn
    return p / (used if frozen else 1.0), K * rho / (K * rho + 1 - rho), K


def cohort(rule, N, rng, lost=0.0):
    """Return whose replies arrive in a round."""
    if isinstance(rule, int):
        S = np.sort(rng.choice(N, rule, replace=False))
    else:
        while not (drawn := rng.random(N) < rule).any():
            pass
        S = np.flatnonzero(drawn)
    return S[rng.random(len(S)) >= lost] if lost else S


def prox(v, weight):
    """Return the prox of weight ||x||_1."""
    return np.sign(v) * np.maximum(np.abs(v) - weight, 0)


def dualfl(Q, b, rule, nu, rho, rounds, rng, l1=0.0, lost=0.0, frozen=True, p=None):
    """Yield the models of f_j = x'Q_j x/2 - b_j'x, l1 at the server, from 0.

    Every client holds z_j and e_j as of its last round, and the server (A_j, B_j) for each. A round
    without a reply changes nothing where `frozen`. A given p takes the place of the right one.
    """
    N, d = b.shape
    right, q, K = constants(rule, N, rho, lost, frozen)
    p = right if p is None else p
    z_j, e_j, z, e, t = np.zeros((N, d)), np.zeros((N, d)), np.zeros(d), np.zeros(d), 1.0
    A, B = np.zeros(N), np.ones(N)
    for _ in range(rounds):
        S = cohort(rule, N, rng, lost)
        if frozen and not len(S):
            yield prox(z + e, l1 / nu)
            continue
        sigma, r, chi, a, c, k = numbers(t, p, q, K)
        theta, total = prox(z + sigma * e, l1 / nu), np.zeros(d)
        for j in S:
            z_j[j], e_j[j] = z_j[j] + A[j] * e_j[j], B[j] * e_j[j]
            m = z_j[j] - chi * e_j[j]
            hessian = Q[j] + (r - 1) * nu * np.eye(d)
            theta_j = np.linalg.solve(hessian, b[j] + nu * (r * theta - m))
            w = z_j[j] + a * e_j[j]
            delta = m + r * (theta_j - theta) - w
            z_j[j], e_j[j] = w + delta, c * e_j[j] - k * delta
            total += delta
        z, e = z + a * e + total / N, c * e - k * total / N
        A, B = A + a * B, c * B
        A[S], B[S] = 0.0, 1.0
        t = following(t, p, q)
        yield prox(z + e, l1 / nu)


def bound(Q, b, rule, nu, rho, rounds):
    """Return the theorem's bound on E ||theta_k - theta*||^2 from 0 for k = 1, ..., no psi."""
    N = len(b)
    p, q, K = constants(rule, N, rho)
    best = np.linalg.solve(Q.mean(0), b.mean(0))
    star = best - (Q @ best - b) / nu  # z_j at the optimum
    start = (1 - p) * (best**2).sum() + (1 + q - 2 * p * q) / (K * (1 - q)) * (star**2).sum() / N
    k = np.arange(rounds)
    return start * np.minimum((1 - p * q**0.5) ** k, 4 / (2 + p * k) ** 2)


def least_weight(p, q, rounds):
    """Return the least weight of a past point in x_k, by the recursion of its two weights."""
    t, least = 1.0, np.inf
    for _ in range(rounds):
        before, t = t, following(t, p, q)
        sigma = numbers(t, p, q, 1.0)[0]
        on_z = (1 - p * q) * (sigma / before + 1 - sigma) - (1 / t) * (1 - p * q * t)
        least = np.minimum(least, np.minimum(on_z, (1 - p * q) * sigma))
    return least


def quadratics(N=6, d=8, largest=20.0, seed=1):
    """Return Q_j of eigenvalues from 1 to `largest`, each in its own basis, and b_j."""
    rng, Q, b = np.random.default_rng(seed), [], []
    for _ in range(N):
        U = np.linalg.qr(rng.standard_normal((d, d)))[0]
        Q.append(U @ np.diag([1.0, largest, *rng.uniform(1, largest, d - 2)]) @ U.T)
        b.append(5 * rng.standard_normal(d))
    return np.array(Q), np.array(b)


def main(runs=60, rounds=200):
    """Print the mean error over the bound, and the least weight over a grid."""
    Q, b = quadratics()
    best, nu = np.linalg.solve(Q.mean(0), b.mean(0)), 1.0
    for rule in (1, 2, 4, 6, 0.3):
        for rho in (nu / 20, 0.0):
            found = [
                [((x - best) ** 2).sum() for x in dualfl(Q, b, rule, nu, rho, rounds, rng)]
                for rng in map(np.random.default_rng, range(runs))
            ]
            share = np.mean(found, axis=0) / bound(Q, b, rule, nu, rho, rounds)
            share = share[np.mean(found, axis=0) > 1e-25]
            print(f"{rule = }, {rho = }: at most {share.max():.2g} of the bound")
    for frozen, p in ((False, None), (True, 0.2 / 6), (True, None)):
        found = [
            sum(
                ((x - best) ** 2).sum() > 1e-20
                for x in dualfl(Q, b, 1, nu, nu / 20, 9000, rng, 0.0, 0.8, frozen, p)
            )
            for rng in map(np.random.default_rng, range(5))
        ]
        rounds_needed = np.median(found)
        print(f"4 of 5 replies lost, {frozen = }, {p = }: {rounds_needed:.0f} rounds")
    p, q = np.meshgrid(np.geomspace(1e-4, 1, 401), [0, *np.geomspace(1e-9, 0.999999, 400)])
    print(f"least weight, {p.size} pairs (p, q): {least_weight(p, q, 3000).min():.2g}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
