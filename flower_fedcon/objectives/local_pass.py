"""A client's local pass, declared once for all that carry it out, step by step or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from flower_fedcon.arrays import larger, length, pick, wide
from flower_fedcon.regularizers import Regularizer, Zero
from flower_fedcon.regularizers.batched import BatchedRegularizer, entry_weights
from flower_fedcon.server.own_rates import OwnRate
from flower_fedcon.validation import Array

_ROUNDING = {"float64": 2.0**-26, "float32": 2.0**-11.5}  # roots of the machine epsilon
Z = (0.0, 1.0)
"""The threshold and the divisor that leave a point at z."""


class Prox(NamedTuple):
    """The points w = prox_psi(z / c, t / c) of step k = 0, 1, ...: the minimisers of a model.

    w minimises t psi(w) - <z, w> + c/2 ||w||^2; with c = 1 it is prox_psi(z, t).

    Attributes
    ----------
    psi : Regularizer
    step : callable
        t, as a function of k.
    curvature : callable, optional
        c, as a function of k; 1 if None.

    Examples
    --------
    >>> import numpy as np
    >>> from flower_fedcon.regularizers import ElasticNet
    >>> point = Prox(ElasticNet(1.0, 2.0), lambda k: 0.5 * k)
    >>> point(np.array([3.0, -5.0]), 2), point.numbers(3)
    (array([ 0.66666667, -1.33333333]), [(0.0, 1.0), (0.5, 2.0), (1.0, 3.0)])
    """

    psi: Any
    step: Callable[[int], Any]
    curvature: Callable[[int], Any] | None = None

    def __call__(self, z: Array, k: int) -> Array:
        """Return the point of step k."""
        t = self.step(k)
        if self.curvature is None:
            return self.psi.prox(z, t)  # type: ignore[no-any-return]
        c = self.curvature(k)
        return self.psi.prox(z / c, t / c)  # type: ignore[no-any-return]

    @property
    def entrywise(self) -> bool:
        """Whether a point is z after soft-thresholding and division."""
        return entry_weights(self.psi) is not None

    def numbers(self, count: int) -> list[tuple[Any, Any]]:
        """Return threshold and divisor of the first points, which are `entrywise`."""
        weights = entry_weights(self.psi)
        assert weights is not None  # noqa: S101  (see `entrywise`)
        (l1, l2), curvature = weights, self.curvature
        if curvature is None:
            if not (l1 or l2):
                return [Z] * count
            return [(t * l1, 1.0 + t * l2) for t in map(self.step, range(count))]
        return [(self.step(k) * l1, curvature(k) + self.step(k) * l2) for k in range(count)]


def proxes_of(psi: Any) -> int:
    """Return the count of one prox of psi: 1, or 0 for `Zero`.

    >>> proxes_of(Zero())
    0
    """
    inner = psi.inner if isinstance(psi, BatchedRegularizer) else psi
    return int(not isinstance(inner, Zero))


def shortened(gradient: Array, most: float, axes: int) -> Array:
    """Return the clients' gradients, shortened to at most this norm.

    >>> import numpy as np
    >>> shortened(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0, 1)
    array([[0.6, 0.8],
           [0.3, 0.4]])
    """
    factor = most / larger(length(gradient, axes), most)
    short: Array = wide(factor, gradient) * gradient
    return short


class LocalPass(NamedTuple):
    """A client's steps z := a z + b w - rate g, or a minimisation, with their start.

    g is the gradient of h(x) = f_j(x) + <linear - less, x> + shift/2 ||x - center||^2, plus a
    subgradient of psi, at a point w computed from z. With a `solver` the pass minimises h from the
    start instead.

    Attributes
    ----------
    start : array
        Of the model's shape, or with a leading axis for clients with different starts. The same
        holds for the other arrays.
    linear, center : array, optional
        The origin if None.
    shift : float
        Of any sign.
    subgradient : Regularizer, optional
        psi; one of its subgradients is added.
    less : array, optional
        Subtracted from `linear`, if that is given.
    steps : int
        The number of steps.
    rate : float
    point : callable, optional
        Returns w from (z, k), for step k = 0, 1, ...; a `Prox` for proximal points. z itself if
        None.
    first : array, optional
        The point of the first step, of the model's shape, instead of the one computed from z.
    onward : (float, float)
        a and b.
    dual : callable, optional
        Takes the place of w by its dual, such as the gradient of a distance-generating function.
    gradient : callable, optional
        Replaces f_j's.
    own_rate : OwnRate, optional
        The rule that adapts each client's rate from step to step; a `Prox` then uses the rate of
        the previous step.
    clip : float, optional
        A longer gradient of f_j is shortened to this norm before other terms are added.
    variate_rate : float, optional
        The rate of control variates, if the method has them: c_i := c_i + (rate (end - start) - c),
        where c_i is `less` and c is `linear`.
    solver : LocalSolver, optional
    regularizer, stop, objective : optional
        For a minimisation: psi, an early stopping rule, and a replacement of f_j; see
        `solvers.LocalProblem` and `LocalSolver.solve`.

    Examples
    --------
    >>> import numpy as np
    >>> pulled = LocalPass(np.zeros(2), linear=np.ones(2), shift=3.0)
    >>> pulled.add_to(np.array([4.0, 8.0]), x=np.array([1.0, 0.0]))
    array([8., 9.])
    >>> drifting = LocalPass(np.zeros(2), linear=np.ones(2), less=np.array([1.0, 3.0]))
    >>> drifting.add_to(np.array([4.0, 8.0]), x=np.zeros(2))
    array([4., 6.])
    >>> LocalPass(np.ones(2), steps=2, rate=0.5).play(lambda x: x)
    array([0.25, 0.25])
    """

    start: Any
    linear: Any = None
    shift: float = 0.0
    center: Any = None
    subgradient: Regularizer | None = None
    less: Any = None
    steps: int = 0
    rate: Any = 0.0
    point: Callable[[Array, int], Array] | Prox | None = None
    first: Array | None = None
    onward: tuple[float, float] = (1.0, 0.0)
    dual: Callable[[Array], Array] | None = None
    gradient: Callable[[Array], Array] | None = None
    own_rate: OwnRate | None = None
    clip: float | None = None
    variate_rate: float | None = None
    solver: Any = None
    regularizer: Any = None
    stop: Any = None
    objective: Any = None

    def only(self, places: Any) -> LocalPass:
        """Return the pass of some clients of a cohort, whose starts have a client axis.

        Arrays without that axis are shared by all clients and kept.
        """
        arrays = {
            name: array[places]
            for name in ("start", "linear", "center", "less")
            if (array := getattr(self, name)) is not None and array.ndim == self.start.ndim
        }
        return self._replace(**arrays)

    # --- one step -------------------------------------------------------------------------------

    def at(self, z: Array, k: int) -> Array:
        """Return the point of step k."""
        if k == 0 and self.first is not None:
            return self.first
        return z if self.point is None else self.point(z, k)

    def moved(self, z: Array, w: Array, g: Array) -> Array:
        """Return z after a step with the gradient g of h at w."""
        a, b = self.onward
        if b and self.dual is not None:
            w = self.dual(w)
        onward = (z if a == 1 else a * z) if b == 0 else w if (a, b) == (0, 1) else a * z + b * w
        moved: Array = onward + -wide(self.rate, g) * g  # in the product's memory
        return moved

    @property
    def proxes(self) -> int:
        """The number of proximal points, of psi or by a mirror map."""
        each = proxes_of(self.point.psi) if isinstance(self.point, Prox) else 1
        return 0 if self.point is None else each * max(0, self.steps - (self.first is not None))

    @property
    def is_the_method(self) -> bool:
        """Whether the method prescribes the steps, and not only terms added to gradients."""
        return self.point is not None or self.onward != (1.0, 0.0)

    @property
    def simplified(self) -> LocalPass:
        """The same with one linear term: without `less`."""
        if self.less is None:
            return self
        return self._replace(linear=self.linear - self.less, less=None)

    @property
    def corrects(self) -> bool:
        """Whether anything is added to the gradients of f_j."""
        return not (self.subgradient is None and self.linear is None and not self.shift)

    def clipped(self, gradient: Any, axes: int) -> Any:
        """Return gradients of f_j after clipping, for models with `axes` axes."""
        return gradient if self.clip is None else shortened(gradient, self.clip, axes)

    def add_to(self, gradient: Any, x: Any) -> Any:
        """Return a gradient of f_j at x plus those of the added terms, as a new array.

        It uses operators only, so that it works for any framework's tensors. `simplified` is
        faster.
        """
        if self.less is not None:
            return self.simplified.add_to(gradient, x)
        if self.subgradient is not None:
            gradient = gradient + self.subgradient.subgradient(x)
        if self.linear is not None:
            gradient = gradient + self.linear
        if self.shift:
            gradient = gradient + self.shift * (x if self.center is None else x - self.center)
        return gradient

    # --- all of them ----------------------------------------------------------------------------

    def play(self, gradient: Callable[[Array], Array], axes: int | None = None) -> Array:
        """Return the end of the steps, taken one by one; `gradient` is that of f_j.

        `axes` is a model's number of axes, by default that of `start`.
        """
        each, ask = self.simplified, self.gradient or gradient
        z, corrects, clips = each.start, each.corrects, each.clip is not None
        for k in range(each.steps):
            w = each.at(z, k)
            g = ask(w)
            if clips:
                g = each.clipped(g, z.ndim if axes is None else axes)
            z = each.moved(z, w, each.add_to(g, w) if corrects else g)
        return z  # type: ignore[no-any-return]

    def adapt(
        self,
        gradient: Callable[[Array], Array],
        again: Callable[[Array], Array] | None,
        axes: int,
    ) -> Done:
        """Return the end of steps with `own_rate`.

        `again` evaluates the last gradient's function at another point, if each step has its own
        rows.
        """
        each, rule, z = self.simplified, self.own_rate, self.start
        assert rule is not None  # noqa: S101  (the caller's case)
        rate, theta, total = self.rate, 1.0, 0.0
        last: Any = None
        for k in range(each.steps):
            w = each.at(z, k)
            g = each.clipped(gradient(w), axes)
            if last is not None:
                before = last[1] if again is None else each.clipped(again(last[0]), axes)
                moved, near = w - last[0], _ROUNDING[g.dtype.name] * length(w, axes)
                new = rule.after(rate, theta, moved, g - before, axes)
                new = pick(length(moved, axes) > near, new, rate)  # else rounding would decide
                theta, rate = new / rate, new
                each = each.at_rate(rate)
            last, total = (w, g), total + rate
            z = each.moved(z, w, each.add_to(g, w) if each.corrects else g)
        return Done(each, z, each.steps, length=total)

    def at_rate(self, rate: Any) -> LocalPass:
        """Return the pass with another rate of its steps and its prox."""
        point = self.point
        if isinstance(point, Prox):
            point = point._replace(step=lambda k: rate)
        return self._replace(rate=rate, point=point)

    @property
    def in_numbers(self) -> bool:
        """Whether all but f_j is arrays and numbers, which compiled loops take."""
        if self.subgradient is not None or self.gradient is not None or self.clip is not None:
            return False
        return self.point is None or (isinstance(self.point, Prox) and self.point.entrywise)

    @property
    def points(self) -> list[tuple[Any, Any]]:
        """(threshold, divisor) of each step: w is z after soft-thresholding and division.

        For steps that are `in_numbers`; the object `Z` for a point equal to z.
        """
        return self.point.numbers(self.steps) if isinstance(self.point, Prox) else [Z] * self.steps

    @property
    def arrays(self) -> list[Array]:
        """The arrays that are not None."""
        given = self.start, self.linear, self.center, self.first, self.less
        return [array for array in given if array is not None]

    @property
    def plain(self) -> bool:
        """Whether the steps are z := z - rate grad h(z)."""
        plain = self.onward in ((1.0, 0.0), (0.0, 1.0))
        plain = plain and (self.first is None or self.first is self.start)
        return plain and all(point is Z for point in self.points)


class Done:
    """The result of a local pass.

    Parameters
    ----------
    declared : LocalPass
    end : array, optional
        The end of the steps, shape (..., *model); computed from `change` if None.
    steps : int
        The number of steps; 0 for a minimisation.
    gradient : array, optional
        The mean of the steps' gradients without correction, if the user's code takes the steps.
    change, variates : array, optional
        The move, and the new control variates, if they were computed with the steps.
    length : float or array of shape (clients,), optional
        The sum of the steps' rates, if the pass adapts them.
    """

    __slots__ = ("_change", "_end", "_variates", "declared", "gradient", "length", "steps")

    def __init__(
        self,
        declared: LocalPass,
        end: Array | None = None,
        steps: int = 0,
        gradient: Array | None = None,
        change: Array | None = None,
        variates: Array | None = None,
        length: Any = None,
    ) -> None:
        self.declared, self.steps, self.gradient = declared, steps, gradient
        self.length = length
        self._end, self._change, self._variates = end, change, variates

    @property
    def start(self) -> Array:
        """The start of the steps."""
        return self.declared.start  # type: ignore[no-any-return]

    @property
    def end(self) -> Array:
        """The end of the steps, shape (..., *model)."""
        if self._end is None:
            self._end = self.start + self._change
        return self._end

    @property
    def change(self) -> Array:
        """The move: end - start."""
        if self._change is None:
            self._change = self._end - self.start
        return self._change

    @property
    def variates(self) -> Array:
        """The new control variates, by the declared `variate_rate`."""
        if self._variates is None:
            declared = self.declared
            self._variates = declared.less + (self.change * declared.variate_rate - declared.linear)
        return self._variates
