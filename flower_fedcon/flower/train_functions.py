"""Train functions of a Flower app as clients of this package's strategies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message

from flower_fedcon.core.protocol import MOST_EXAMPLES
from flower_fedcon.errors import ConfigError, FedConError, repr_of
from flower_fedcon.flower import messages
from flower_fedcon.flower.forms import FORM, Extras, ModelForm, attach, detach, flat_metrics
from flower_fedcon.flower.refusals import check_callers
from flower_fedcon.layout import as_named
from flower_fedcon.training.local_round import LocalTraining
from flower_fedcon.training.loop_client import own_loop
from flower_fedcon.training.numpy_loop import ArrayTraining
from flower_fedcon.validation import Array
from flower_fedcon.wire.own_code import place_of

if TYPE_CHECKING:
    from flower_fedcon.flower.codec import Config

Answer = tuple[list[Array], int, "Config"]
Loop = Callable[[LocalTraining, dict[str, Array], "Config"], tuple[dict[str, Array], "Config"]]


def train_step(
    function: Callable[..., Any] | None = None,
    *,
    training: type[LocalTraining] = ArrayTraining,
    state_dir: str | None = None,
    oracles: Mapping[str, Any] | None = None,
    num_examples: Callable[[Context], int] | None = None,
) -> Any:
    """Turn a train function into a client of one of this package's strategies.

    Put the decorator under `@app.train()`. The function keeps Flower's form: its message has the
    model under "arrays" and `train_config` under "config", and its reply has one ArrayRecord and
    one MetricRecord. Its loop calls `current_method()` for the round's method (see
    `flower_fedcon.training.ArrayTraining`); a function with a third parameter gets the method
    there. The client's state is kept for the function, exactly once. In an app built on
    `client_fn`, put the decorator on the method `fit` of a `NumPyClient`, which takes
    `(parameters, config)` or `(parameters, config, method)`; the client needs
    `client.context = context`.

    Parameters
    ----------
    function : callable
        `train(message, context)`, or `train(message, context, method)`.
    training : type
        The type of `method`; `flower_fedcon.torch.train_step` has the one for PyTorch.
    state_dir : path, optional
        A folder in which clients keep their state across restarts; by default the node
        configuration's "state-dir", if it has one.
    oracles : dict, optional
        Your own sets or regularizers, by the name of the strategy's argument.
    num_examples : callable, optional
        `num_examples(context)` returns this client's number of examples. With
        `weighting="examples"` AREA, FedDyn, FedVARP, MIFA and Scaffold need it, before round 1.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> @app.train()
    ... @train_step
    ... def train(message, context, method):
    ...     model = message.content["arrays"].to_numpy_ndarrays()
    ...     correction = method.begin(model)
    ...     # for each minibatch: gradients = correction.apply_gradients(model, gradients)
    """
    if function is None:
        return lambda f: train_step(
            f,
            training=training,
            state_dir=state_dir,
            oracles=oracles,
            num_examples=num_examples,
        )
    options = {"state_dir": state_dir, "oracles": oracles, "place": place_of(function)}
    taken = _positional(function)

    def answer(arrays: list[Array], config: Config, context: Context, loop: Loop) -> Answer:
        serving = _Serving(training, loop, context, options, num_examples)
        return serving.answer(arrays, config)

    @wraps(function)
    def serve(*arguments: Any) -> Any:
        check_callers()  # here, before a mod sees a reply, so that Flower reports an error
        if isinstance(arguments[0], Message):
            message, context = arguments
            arrays, config = messages.read_instruction(message, messages.TRAIN, own=False)

            def in_app(
                method: LocalTraining, model: dict[str, Array], config: Config
            ) -> tuple[dict[str, Array], Config]:
                message.content = messages.app_instruction(model, config, messages.Lent)
                reply = function(message, context, *([method] if taken > 2 else []))
                if not isinstance(reply, Message) or not reply.has_content():
                    raise ConfigError(f"the train function must return a Message, got {reply!r}")
                return messages.app_reply(reply.content)

            return messages.train_reply(message, *answer(arrays, config, context, in_app))
        client, arrays, config = arguments

        def in_client(
            method: LocalTraining, model: dict[str, Array], config: Config
        ) -> tuple[dict[str, Array], Config]:
            given = (client, list(model.values()), config, method)
            trained, examples, metrics = function(*given[: max(3, taken)])
            if len(trained) != len(model):
                raise ConfigError(
                    f"fit must return {len(model)} arrays, as many as the model has, "
                    f"got {len(trained)}"
                )
            return dict(zip(model, trained, strict=True)), {**metrics, "num-examples": examples}

        if not isinstance(getattr(client, "context", None), Context):
            raise ConfigError(
                f"{type(client).__name__}.fit keeps its state in Flower's context: write "
                "client.context = context in client_fn"
            )
        return answer(arrays, config, client.context, in_client)

    return serve


def _positional(function: Callable[..., Any]) -> int:
    """Return the number of positional arguments that a function takes."""
    kinds = inspect.Parameter
    each = inspect.signature(function).parameters.values()
    if any(p.kind is kinds.VAR_POSITIONAL for p in each):
        return 4
    return sum(p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD) for p in each)


class _Serving:
    """One message to a train function."""

    def __init__(
        self,
        training: type[LocalTraining],
        loop: Loop,
        context: Context,
        options: Mapping[str, Any],
        num_examples: Callable[[Context], int] | None,
    ) -> None:
        self._training, self._loop, self._context = training, loop, context
        self._options, self._num_examples = options, num_examples
        self._said: Extras | None = None

    def answer(self, arrays: Sequence[Array], config: Mapping[str, Any]) -> Answer:
        """Return the reply's arrays, number of examples and configuration."""
        model_arrays, settings, extras = detach(arrays, config)
        self._extras = extras
        try:
            kind = own_loop(str(settings.get("algorithm")))
            client = kind(self._run, self._training, context=self._context, **self._options)
            if self._num_examples is not None:
                client.num_examples = _counted("num_examples", self._num_examples(self._context))
            form = settings.pop(FORM, None)
            self._form = None if form is None else ModelForm.from_json(str(form))
            reply_arrays, examples, about = client.fit(model_arrays, settings)
        except FedConError as error:  # the server names this node and the reason
            return [], 1, {"names": "", "round": 0, "client": 0, "error": str(error)}
        if self._said is not None:
            said = self._said._replace(notes=self._notes)
            reply_arrays, about = attach(reply_arrays, about, said)
        return reply_arrays, examples, about

    def _run(self, method: LocalTraining) -> tuple[list[Array], int]:
        """Call the train function; return its final layers and its number of examples."""
        form, self._notes = self._form, method.notes
        if form is None:
            form = ModelForm(tuple(str(i) for i in range(len(method.layout.shapes))))
        model = form.join(method.start, self._extras.buffers)
        trained, metrics = self._loop(method, model, dict(self._extras.user))
        trained = as_named(trained, [*model])
        if trained.keys() != model.keys():
            raise ConfigError(
                f"the train function replied the arrays {', '.join(trained)}; the server's model "
                f"has {', '.join(model)}: reply ArrayRecord(model.state_dict()) of the same model"
            )
        layers, buffers = form.split(trained)
        examples = _counted("num-examples", metrics.pop("num-examples"))
        numbers = {
            k: float(v) for k, v in flat_metrics(metrics).items() if isinstance(v, int | float)
        }
        self._said = Extras(buffers, {}, numbers)
        return layers, examples


def _counted(name: str, value: Any) -> int:
    """Return the number of examples that an app's function states; its fraction is cut off.

    Raises
    ------
    ConfigError
        If it is not a number from 0 to what a server takes.
    """
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not 0 <= number <= MOST_EXAMPLES:
        raise ConfigError(
            f"{name} is {repr_of(value)}, expected a whole number of examples, at most "
            f"{MOST_EXAMPLES:g}"
        )
    return number
