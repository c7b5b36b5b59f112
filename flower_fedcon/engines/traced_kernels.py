"""The compiled kernels in traced rounds: what `kernels.compiled` offers, for traced arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flower_fedcon.arrays import of_type, vector
from flower_fedcon.engines.traced import TracedArray, plain
from flower_fedcon.kernels import compiled, custom_calls
from flower_fedcon.kernels.threads import Pace
from flower_fedcon.validation import Array

_DOUBLE = np.dtype(np.float64)
_THREADS = "kernels.threads"  # the name in `given` of how many these are


class TracedKernels:
    """The loops of `kernels.compiled` as custom calls, on one thread or on all.

    Attributes
    ----------
    data : dict of array
        What tracing a round has shown that they need.
    given : dict of jax.Array
        The same as arguments of the round that is traced, and how many threads there are.
    shared : bool
        Whether any of their work is enough for more threads than one.
    """

    ALL_ROWS, ALL_STEPS = compiled.ALL_ROWS, compiled.ALL_STEPS

    def __init__(self) -> None:
        self.data: dict[str, Array] = {}
        self.given: Mapping[str, Any] = {}
        self.shared = False
        self._pace = Pace()

    def run(self, rounds: int, loop: Callable[[dict[str, Any]], Any]) -> Any:
        """Return what a loop of rounds finds that have `data`, on as many threads as are faster."""
        if not self.shared:
            return loop({})
        with custom_calls.on_threads(self._pace, rounds) as threads:
            found = loop({_THREADS: threads})
            for value in jax.tree.leaves(found):
                value.block_until_ready()
            return found

    def held(self, array: Array) -> Any:
        """Return an array of the clients' data as one that is traced."""
        name = f"kernels.{id(array)}"
        self.data[name] = array
        return TracedArray(jnp.asarray(self.given.get(name, array)))

    def read_only(self, x: Array) -> Array:
        """Return x: no function here changes what it is given."""
        return x

    def add_gradients(
        self, tables: Any, targets: Any, places: Any, rows: Any, x: Any, out: Any, factors: Any,
        scale: Any, link: int, center: Any, pull: Any,
    ) -> None:  # fmt: skip
        """Call `rows.add_gradients`, which describes the arguments."""
        numbers = vector((scale, pull), _DOUBLE)
        given = tables, targets, places, rows, x, factors, center, numbers
        self._call("add_gradients", len(places) * tables[0].size, given, (link,), out)

    def take_steps(
        self, rate: None, tables: Any, targets: Any, places: Any, rows: Any, start: Any,
        factors: Any, ridges: Any, logistic: bool, linear: Any, less: Any, center: Any, first: Any,
        shift: Any, step: Any, of_z: Any, of_point: Any, thresholds: Any, divisors: Any,
    ) -> tuple[Any, None]:  # fmt: skip
        """Return where `compiled.take_steps` leads, and nothing beside it."""
        given = (
            tables, targets, places, rows, start, factors, ridges, linear, less, center, first,
            vector((shift, step, of_z, of_point), start.dtype), thresholds, divisors,
        )  # fmt: skip
        shape = len(places), start.shape[1]
        return self._stepped("take_steps", len(divisors), shape, given, (logistic,))

    def take_steps_by_scores(
        self, rate: None, tables: Any, targets: Any, products: Any, losses: Any, places: Any,
        start: Any, factors: Any, ridges: Any, logistic: bool, linear: Any, less: Any, center: Any,
        shift: Any, step: Any, count: int,
    ) -> tuple[Any, None]:  # fmt: skip
        """Return where `compiled.take_steps_by_scores` leads, without losses."""
        given = (
            tables, targets, products, places, start, factors, ridges, linear, less, center,
            vector((shift, step), start.dtype),
        )  # fmt: skip
        flags, shape = (logistic, count), (len(places), start.shape[1])
        return self._stepped("take_steps_by_scores", 2, shape, given, flags)

    def take_softmax_steps(
        self, rate: None, classes: int, tables: Any, targets: Any, places: Any, rows: Any,
        start: Any, ridges: Any, linear: Any, less: Any, center: Any, first: Any, shift: Any,
        step: Any, of_z: Any, of_point: Any, thresholds: Any, divisors: Any,
    ) -> tuple[Any, None]:  # fmt: skip
        """Return where `compiled.take_softmax_steps` leads."""
        given = (
            tables, targets, places, rows, start, ridges, linear, less, center, first,
            vector((shift, step, of_z, of_point), start.dtype), thresholds, divisors,
        )  # fmt: skip
        shape = len(places), tables.shape[2], classes
        steps = len(divisors) * classes
        return self._stepped("take_softmax_steps", steps, shape, given, ())

    def _stepped(
        self,
        loop: str,
        steps: int,
        shape: tuple[int, ...],
        given: tuple[Any, ...],
        flags: tuple[Any, ...],
    ) -> tuple[Any, None]:
        """Return where so many steps lead."""
        tables = given[0]
        work = steps * shape[0] * tables[0].size
        (models,) = self._found(loop, work, given, flags, ((shape, tables.dtype),))
        return models, None

    def steepest(self, g: Any) -> tuple[Any, Any]:
        """Return what `compiled.steepest` does."""
        like = ((len(g),), np.int64), ((len(g),), g.dtype)
        return self._found("steepest", g.size, (g,), (), like)

    def mix_coordinates(self, x: Any, codes: Any, step: Any, magnitude: float) -> Any:
        """Return what `compiled.mix_coordinates` does."""
        amount = of_type(step, x.dtype) * of_type(magnitude, x.dtype)
        numbers, mixed = vector((1.0 - step, amount), x.dtype), x.copy()
        self._call("mix_coordinates", 2 * x.size, (codes, numbers), (), mixed)
        return mixed

    def take_vertex_steps(
        self, tables: Any, targets: Any, places: Any, x: Any, factors: Any, ridges: Any,
        scale: Any, link: int, center: Any, pull: Any, step: Any, magnitude: float,
    ) -> tuple[Any, Any, Any]:  # fmt: skip
        """Return what `compiled.take_vertex_steps` does."""
        n, amount = len(places), of_type(step, x.dtype) * of_type(magnitude, x.dtype)
        numbers = vector((scale, pull, 1.0 - step, amount), _DOUBLE)
        given = tables, targets, places, x, factors, ridges, center, numbers
        like = ((n,), np.int64), ((n,), x.dtype), ((n, x.shape[1]), x.dtype)
        work = n * tables[0].size
        return self._found("take_vertex_steps", work, given, (link,), like)

    def _threads(self, work: int) -> Any:
        """Return how many threads are to do so many multiply-adds, for a call."""
        if work < compiled.FEW:
            return custom_calls.ALONE
        self.shared = True
        return self.given.get(_THREADS, custom_calls.ALONE)

    def _call(
        self, loop: str, work: int, given: tuple[Any, ...], flags: tuple[Any, ...], out: Any
    ) -> None:
        """Have `out` hold what a loop makes of it."""
        threads, operands = self._threads(work), _operands(given)
        out.hold(custom_calls.changed(loop, threads, flags, operands, plain(out)))

    def _found(
        self, loop: str, work: int, given: tuple[Any, ...], flags: tuple[Any, ...], like: Any
    ) -> tuple[Any, ...]:
        """Return what a loop writes into arrays like these."""
        threads, operands = self._threads(work), _operands(given)
        results = custom_calls.found(loop, threads, flags, operands, like)
        return tuple(TracedArray(result) for result in results)


def _operands(given: tuple[Any, ...]) -> list[Any]:
    return [jnp.asarray(plain(value)) for value in given]
