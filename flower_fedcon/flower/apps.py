"""The two Flower apps: `client_app` for every node, `server_app` for the server."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from flower_fedcon.errors import ConfigError, FedConError

_log = logging.getLogger("flwr")

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp

    from flower_fedcon.flower.policy import Policy
    from flower_fedcon.layout import Model
    from flower_fedcon.privacy import ExampleDP, SecAggPlus


def client_app(
    load_objective: Callable[..., Any],
    *,
    oracles: Mapping[str, Any] | None = None,
    state_dir: str | None = None,
    policy: Policy | Callable[[Context], Policy | None] | None = None,
    mods: Sequence[Any] | None = None,
    privacy: ExampleDP | None = None,
) -> ClientApp:
    """Return a ClientApp that serves every algorithm of the collection.

    Parameters
    ----------
    load_objective : callable
        `load_objective(context)`, or `load_objective()`, returns this node's objective f_j; the
        context's `node_config` can name the node's data. It is called for each message.
    oracles : dict, optional
        Your own sets or regularizers, by the name of the strategy's argument ("constraint",
        "regularizer"), since a message can name only this package's.
    state_dir : path, optional
        A folder in which clients keep their state across restarts; by default the node
        configuration's "state-dir", if it has one.
    policy : Policy or callable, optional
        What a server may ask of a node, or a function of the context that returns it; by default
        `Policy()`. The node's own configuration overrides it.
    mods : sequence, optional
        Flower's client mods. Those that change replies are refused, and the error says what to use
        instead.
    privacy : ExampleDP, optional
        Makes each example of this node private; "privacy." in its configuration overrides it.

    Raises
    ------
    ConfigError
        If a mod cannot be used with the methods.

    Examples
    --------
    >>> from flower_fedcon import client_app
    >>> from flower_fedcon.objectives import LeastSquares
    >>> def load(context):
    ...     with np.load(context.node_config["data"]) as data:
    ...         return LeastSquares(data["A"], data["b"])
    >>> app = client_app(load)
    """
    from flwr.clientapp import ClientApp

    from flower_fedcon.core.wings import brought
    from flower_fedcon.flower import messages, secagg_node
    from flower_fedcon.flower.policy import Policy
    from flower_fedcon.flower.refusals import check_callers, check_mods
    from flower_fedcon.privacy.examples import ExampleDP
    from flower_fedcon.registry import client_class

    load = _with_context(load_objective, "load_objective")
    if mods:
        check_mods(mods)
    app = ClientApp(mods=list(mods) if mods else None)

    def rules_of(context: Context) -> Any:
        return policy(context) if callable(policy) else policy

    def build(config: Mapping[str, Any], context: Context) -> Any:
        kind = client_class(str(config.get("algorithm")))
        given: dict[str, Any] = {"state_dir": state_dir, "oracles": oracles, "privacy": privacy}
        private = ExampleDP.of(dict(context.node_config), privacy) is not None
        with ExitStack() as held:
            for guarded in brought("READING_PRIVATE").values() if private else ():
                held.enter_context(guarded())
            own = load(context)
        return kind(own, context=context, policy=rules_of(context), **given)

    def fit(context: Context, arrays: list[Any], config: dict[str, Any], *seen: Any) -> Any:
        return build(config, context).answer(arrays, config, *seen)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        check_callers()
        if secagg_node.is_part(message):

            def own() -> Policy:
                return Policy.of(dict(context.node_config), rules_of(context))

            return secagg_node.answer(message, context, partial(fit, context), own)
        arrays, config = messages.read_instruction(message, messages.TRAIN)
        try:
            answer = fit(context, arrays, config)
        except FedConError as error:  # such as bad data: the server names this node and the reason
            _log.warning("this node answers with an error: %s", error)
            answer = [], 1, {"names": "", "round": 0, "client": 0, "error": error.told}
        return messages.train_reply(message, *answer)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays, config = messages.read_instruction(message, messages.EVALUATE)
        try:
            answer = build(config, context).evaluate(arrays, config)
        except FedConError as error:
            answer = math.nan, 1, {"error": error.told}
        return messages.evaluate_reply(message, *answer)

    return app


def server_app(
    make_strategy: Callable[..., Any],
    *,
    x0: Model | None = None,
    schema: Any = None,
    callbacks: Sequence[Any] = (),
    secure_aggregation: SecAggPlus | None = None,
) -> ServerApp:
    """Return a ServerApp that runs a strategy.

    The run configuration's keys (`flwr run --run-config`, or the app's pyproject.toml):
    "num-server-rounds" (3), "seed" (0), "weighting" ("uniform", or "examples"), "evaluate-every"
    (10; 0 for the end only), "run-dir", "num-clients" (by default the nodes' "num-partitions"),
    "timeout" in seconds (3600), "resume" (false), "checkpoint-every" (rounds; by default every ten
    seconds), "allow-changes" (names that `resume` may find changed, with commas), "certificates"
    (false), of tables "inference" ("model", "robust", ...), "site-effects" ("common", "own" or
    "random") and "heterogeneity" (false),
    "unsafe" (false), "audit" (true with a "run-dir"), and the arguments of `start` for slow and
    failing nodes: "min-clients-to-start", "start-timeout", "evaluate-timeout" (0 for the default in
    these three), "grace", "round-deadline", "max-retries", "quarantine-after", "quarantine-rounds"
    and "authenticated" (false). "secagg-clipping-range" turns secure aggregation on, with
    "secagg-num-shares", "secagg-reconstruction-threshold" and "secagg-quantization-range". If
    clients add noise, there is no range, and "secagg" (false) turns it on.

    Parameters
    ----------
    make_strategy : callable
        `make_strategy(context)`, or `make_strategy()`, returns the strategy.
    x0 : array or list of arrays, optional
        The start; by default zeros, projected onto the strategy's constraint set.
    schema : Schema, path or dict, optional
        The schema of the nodes' tables, if they have tables. The model's columns are then prepared
        before round 1, and reported by name at the end.
    callbacks : sequence of callables
        As for `simulate`.
    secure_aggregation : SecAggPlus, optional
        Lets the server see only the sum of a round's uploads.

    Examples
    --------
    >>> from flower_fedcon import server_app
    >>> from flower_fedcon.sets import L1Ball
    >>> from flower_fedcon.strategies import FedFW
    >>> app = server_app(lambda: FedFW(L1Ball(radius=12.0), penalty=5.0))
    """
    from flwr.serverapp import ServerApp

    from flower_fedcon.flower.near_misses import warn_of_near_misses
    from flower_fedcon.flower.refusals import check_strategy

    make = _with_context(make_strategy, "make_strategy")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = dict(context.run_config)
        warn_of_near_misses(
            config,
            [*_ALWAYS, *_UNLESS_ZERO, *_WHERE_GIVEN, *_OTHERS],
            "run configuration: server_app",
        )
        strategy = make(context)
        check_strategy(strategy)
        if not callable(getattr(strategy, "start", None)):
            raise ConfigError(f"make_strategy returned {strategy!r}, which is not a strategy")
        strategy.start(
            grid,
            x0,
            **_settings(config),
            callbacks=callbacks,
            schema=schema,
            secure_aggregation=_secure(config, secure_aggregation),
        )

    return app


_ALWAYS = {
    "num-server-rounds": 3, "timeout": 3600.0, "seed": 0, "evaluate-every": 10,
    "weighting": "uniform", "resume": False, "certificates": False, "authenticated": False,
    "unsafe": False, "heterogeneity": False,
}  # fmt: skip
"""Keys of a run configuration, and their defaults for `start`."""
_UNLESS_ZERO = {
    "run-dir": "", "checkpoint-every": 0, "num-clients": 0, "min-clients-to-start": 0,
    "start-timeout": 0.0, "evaluate-timeout": 0.0, "inference": "", "site-effects": "",
}  # fmt: skip
"""Keys for which 0 or an empty text means the default of `start`."""
_WHERE_GIVEN = {
    "audit": False, "grace": 0.0, "round-deadline": 0.0, "max-retries": 0, "quarantine-after": 0,
    "quarantine-rounds": 0,
}  # fmt: skip


_OTHERS = (
    "allow-changes", "secagg", "secagg-clipping-range", "secagg-num-shares",
    "secagg-reconstruction-threshold", "secagg-quantization-range",
)  # fmt: skip
"""Keys that are read on their own."""


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run configuration, under the names of `start`."""
    kinds: dict[str, Any] = {**_ALWAYS, **_UNLESS_ZERO, **_WHERE_GIVEN}
    said = {key: _option(config, key, zero) for key, zero in kinds.items()}
    settings = {
        key.replace("-", "_"): value
        for key, value in said.items()
        if key in _ALWAYS or (key in config and (value or key in _WHERE_GIVEN))
    }
    for key, zero in _UNLESS_ZERO.items():
        if isinstance(zero, int | float) and said[key] < 0:
            raise ConfigError(
                f"run configuration: {key} must be >= 0, where 0 stands for the default, got "
                f"{said[key]!r}"
            )
    names = [name for name in _option(config, "allow-changes", "").split(",") if name]
    settings["num_rounds"] = settings.pop("num_server_rounds")
    return {**settings, "allow_changes": names}


def _secure(config: Mapping[str, Any], given: SecAggPlus | None) -> SecAggPlus | None:
    """Return the secure aggregation of a run configuration, or else of the app."""
    clip = _option(config, "secagg-clipping-range", 0.0)
    if not clip and not _option(config, "secagg", False):
        return given
    from flower_fedcon.privacy import SecAggPlus

    shares = config.get("secagg-num-shares", 1.0)  # a number of them, or a fraction
    return SecAggPlus(
        clip or None,
        shares if type(shares) is int else _option(config, "secagg-num-shares", 1.0),
        _option(config, "secagg-reconstruction-threshold", 0) or None,
        _option(config, "secagg-quantization-range", 0) or None,
    )


_Option = TypeVar("_Option", bool, int, float, str)
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _option(config: Mapping[str, Any], key: str, default: _Option) -> _Option:
    """Return a value of the run configuration, which must have its default's type."""
    value: _Option = config.get(key, default)
    kind = type(default)
    if type(value) is not kind and not (kind is float and type(value) is int):
        wanted = _KINDS[kind]
        raise ConfigError(f"run configuration: {key} must be {wanted}, got {value!r:.99}")
    return value


def _with_context(function: Callable[..., Any], name: str) -> Callable[[Context], Any]:
    """Return `function` as one that takes the context, whether or not it uses it."""
    if not callable(function):
        raise ConfigError(f"{name} must be a function, got {function!r}")
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.kind in kinds and (p.default is p.empty or p.name == "context")
    ]
    return function if wanted else lambda context: function()


__all__ = ["client_app", "server_app"]
