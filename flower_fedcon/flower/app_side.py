"""What the nodes' own train and evaluate functions take and return."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from flwr.app import Message

from flower_fedcon.core.evaluation import (
    MOST_METRICS,
    MetricNames,
    check_metric_names,
    of_single_clients,
    usable,
)
from flower_fedcon.core.protocol import MOST_EXAMPLES, UNIFORM
from flower_fedcon.errors import ConfigError, RefusedError, first_few
from flower_fedcon.flower import incoming, messages
from flower_fedcon.flower.codec import ERROR, Config
from flower_fedcon.flower.forms import (
    FORM,
    Extras,
    ModelForm,
    attach,
    detach,
    flat_metrics,
    mean_buffers,
)
from flower_fedcon.flower.incoming import Fault, Parts
from flower_fedcon.flower.nodes import in_words
from flower_fedcon.layout import array_bytes
from flower_fedcon.runs.history import Record
from flower_fedcon.validation import Array
from flower_fedcon.wire.payloads import load_array

if TYPE_CHECKING:
    from flower_fedcon.core.server import Server

Reader: TypeAlias = Callable[[], tuple[Mapping[str, Any], Any]]
"""Reads the metrics of a client's function, and their number of examples."""
Answers: TypeAlias = Mapping[int, tuple[float, Mapping[str, float]]]
"""By client: the number of examples of its metrics, and the metrics."""
_log = logging.getLogger("flwr")
_EACH = 100  # number of clients up to which each one's metrics are recorded
_TOLD = 10  # metrics of one client that the log names as left out
_LINES = 1000  # log lines about metrics that are left out
_NOTES = {"dtype", "unmoved"}  # kinds of notes from train functions, each logged once
_ALONE = 0.9  # the share of all examples by which one client determines the means of metrics


class AppSide:
    """The app's side of a run whose clients have their own train loops.

    Parameters
    ----------
    form : ModelForm
        The arrays of the model.
    train_config, evaluate_config : dict
        The content of "config" in their functions' messages.
    """

    def __init__(
        self, form: ModelForm, train_config: Mapping[str, Any], evaluate_config: Mapping[str, Any]
    ) -> None:
        self.form = form
        self._train, self._evaluate = dict(train_config), dict(evaluate_config)
        self._heard: dict[int, tuple[float, list[Array], dict[str, float]]] = {}
        self._trained: Record = {}
        self._trained_means: Record = {}
        self._evaluated: Record = {}
        self._of_single: set[str] = set()
        self._unlike = False  # whether two different counts of examples were logged
        self._alone = False  # whether a client that outweighs the others was logged
        self._train_names, self._evaluate_names = MetricNames(), MetricNames()
        self._told: dict[int, set[str]] = {}  # by client: metrics that the log names as left out
        self._lines = 0  # about them
        self._noted: set[str] = set()  # kinds of notes from train functions that were logged
        self._trained_over: list[str] = []
        self._evaluated_over: list[str] = []
        self._lacking: dict[tuple[str, int], list[int]] = {}  # rounds in which a value was lacking

    def open(self, server: Server, buffers: list[Array]) -> None:
        """Take part in a run that starts from these buffers, which the server holds."""
        self._server = server
        server.start_buffers(buffers, self.form.buffers)
        self._names = [client.name for client in server.setup.clients]
        self._loops = [client.own_loop for client in server.setup.clients]

    # --- training ------------------------------------------------------------------------------

    def instruct(
        self, client: int, arrays: list[Array], config: Config, number: int
    ) -> tuple[list[Array], Config]:
        """Return what a client is sent, including what its train function needs.

        `number` is the coming round's or step's: a loop may choose its rate by it.
        """
        if not self._loops[client]:
            return arrays, config
        buffers = self._server.buffers
        self._server.count_bytes(down=_bytes(buffers))
        user = {**self._train, "server-round": number}
        sent, about = attach(arrays, config, Extras(buffers, user, {}))
        return sent, {**about, FORM: self.form.to_json()}

    def hear(self, client: int, parts: Parts) -> Parts:
        """Return the values of a client's method; keep those that its train function adds.

        Raises
        ------
        RefusedError
            If they do not fit the model, or are not numbers.
        """
        if not self._loops[client] or parts.config.get(ERROR) or parts.config.get("lost"):
            return parts
        tensors, config, beside = detach(parts.tensors, parts.config)
        expected = self._server.buffers
        if len(beside.buffers) != len(expected):
            raise RefusedError(
                f"refused: it holds {len(beside.buffers)} buffers, the model {len(expected)}"
            )
        buffers, wrong = list[Array](), list[str]()
        for name, tensor, like in zip(self.form.buffers, beside.buffers, expected, strict=True):
            fits = len(tensor) <= array_bytes(like.shape, like.dtype)
            array = load_array(tensor) if fits else np.empty(0)
            if (array.shape, array.dtype) != (like.shape, like.dtype):
                wrong.append(f"{name!r} is not {like.shape} and {like.dtype}, as the server's")
            elif not (np.isfinite(array) | (array == like)).all():  # a mask may be infinite
                wrong.append(f"{name!r} holds non-finite values")
            buffers.append(array)
        if wrong:
            raise RefusedError(
                f"refused: its buffers: {'; '.join(wrong)}: build the same model on both"
            )
        examples, metrics = self._usable(
            self._train_names, client, lambda: (beside.metrics, parts.examples)
        )
        self._compare(client, examples)
        for kind in _NOTES & beside.notes.keys() - self._noted:
            self._noted.add(kind)
            note = incoming.readable(beside.notes[kind])
            _log.warning("client %s: %s", self._names[client], note)
        self._heard[client] = (examples, buffers, metrics)
        return parts._replace(tensors=tensors, config=config)

    def _compare(self, client: int, examples: float) -> None:
        """Warn once if a client's weight before round 1 differs from that in its replies."""
        before = self._server.setup.clients[client].num_examples
        if self._server.setup.weighting == UNIFORM or before in (1, examples) or self._unlike:
            return  # 1 if the app does not state it
        self._unlike = True
        _log.warning(
            'client %s: num_examples of train_step is %d, but its reply has "num-examples" %g. '
            'With weighting="examples" the first weighs the client before round 1, the second its '
            'update and metrics: let both count the same rows',
            self._names[client], before, examples,
        )  # fmt: skip

    def take_means(self, used: Sequence[int]) -> None:
        """Average the buffers and metrics of clients whose replies were used."""
        heard = {client: self._heard[client] for client in used if client in self._heard}
        self._heard, self._trained, self._trained_means, self._trained_over = {}, {}, {}, []
        if not heard:
            return
        server = self._server
        if server.buffers:
            server.count_bytes(up=len(heard) * _bytes(server.buffers))
            cohort = [buffers for _, buffers, _ in heard.values()]
            alike = server.setup.weighting == UNIFORM
            weights = [1.0 if alike else n for n, _, _ in heard.values()]
            server.move_buffers(mean_buffers(cohort, weights))
        answers = self._own_names({client: (n, m) for client, (n, _, m) in heard.items()})
        self._trained_means = _means(answers)
        self._trained_over = self._over(answers, len(answers))
        self._trained = self._trained_means | self._each(answers)

    @property
    def trained(self) -> Record:
        """The metrics of the last round's train functions."""
        return self._trained

    @property
    def trained_means(self) -> Record:
        """The same metrics, only averaged over clients."""
        return self._trained_means

    @property
    def trained_over(self) -> list[str]:
        """Over how many clients those metrics are averaged that not all have."""
        return self._trained_over

    @property
    def evaluated_over(self) -> list[str]:
        """The same of the last evaluation."""
        return self._evaluated_over

    def lacking(self) -> str:
        """Return whose metrics were no numbers, in which rounds; "" if all were."""
        told = [
            f"{name} of client {self._names[client]} in "
            + (f"{count} rounds ({first} to {last})" if count > 1 else f"round {first}")
            for (name, client), (count, first, last) in sorted(self._lacking.items())
        ]
        return first_few(told, _TOLD)

    @property
    def of_single_clients(self) -> set[str]:
        """The columns of the last record that hold one client's metrics."""
        return self._of_single

    @property
    def columns(self) -> set[str]:
        """The names of the clients' metrics."""
        return {*self.trained, *self.evaluated}

    @property
    def evaluated(self) -> Record:
        """The metrics of the last evaluation."""
        return self._evaluated

    # --- evaluation ----------------------------------------------------------------------------

    def question(
        self, client: int, layers: Sequence[Array], node: int, tensor: messages.Tensors
    ) -> Message:
        """Return the message that asks a client's function or method to evaluate a model."""
        model, config = self.model(layers), self.evaluate_config()
        if self._loops[client] == "client":
            return messages.instruction(messages.EVALUATE, model.values(), config, node, tensor)
        return messages.app_evaluation(messages.app_instruction(model, config, tensor), node)

    def model(self, layers: Sequence[Array]) -> dict[str, Array]:
        """Return a model in the app's form."""
        return self.form.join(layers, self._server.buffers)

    def evaluate_config(self) -> Config:
        """Return the "config" of an evaluate function's message."""
        return {**self._evaluate, "server-round": self._server.round}

    def read(self, contents: Sequence[tuple[int, Message | Fault]]) -> Record:
        """Return the replies of clients' own functions, and their metrics from training."""
        return self.record(
            [
                (client, c if isinstance(c, Fault) else partial(messages.app_metrics, c))
                for client, c in contents
            ]
        )

    def record(self, contents: Sequence[tuple[int, Fault | Reader]]) -> Record:
        """Return the metrics of clients' own functions, from training and evaluation.

        A name that both use gets the prefix "train_" or "evaluate_".

        Parameters
        ----------
        contents : sequence of (client, fault or what reads metrics and number of examples)
        """
        answers: dict[int, tuple[float, dict[str, float]]] = {}
        failed: dict[str, str] = {}
        for client, content in contents:
            answer = content if isinstance(content, Fault) else incoming.guarded(
                partial(self._usable, self._evaluate_names, client, content)
            )  # fmt: skip
            if isinstance(answer, Fault):
                failed[self._names[client]] = answer.reason
            else:
                answers[client] = answer
        if failed:
            _log.warning("no evaluation from %s", in_words(failed))
        known = self._own_names(answers)
        means = _means(known)
        self._evaluated_over = self._over(known, len(contents))
        partly = sum(any(map(math.isnan, metrics.values())) for _, metrics in known.values())
        self._evaluated = means | self._each(known)
        both = self.trained.keys() & self.evaluated.keys()
        taken = {f"{kind}_{name}" for kind in ("train", "evaluate") for name in both}
        record = {
            f"{kind}_{name}" if name in both else name: value
            for kind, measured in (("train", self.trained), ("evaluate", self.evaluated))
            for name, value in measured.items()
            if name in both or name not in taken
        }
        single = (self.trained.keys() - self.trained_means) | (self.evaluated.keys() - means)
        prefixed = {f"{kind}_{name}" for kind in ("train", "evaluate") for name in single & both}
        self._of_single = single | prefixed
        unheard = len(failed) + partly
        return {**record, "unheard": unheard} if unheard else record

    def _usable(
        self, names: MetricNames, client: int, read: Reader
    ) -> tuple[float, dict[str, float]]:
        """Return a client's examples and metrics, NaN for no number; log the unusable once."""
        examples, metrics, others = _checked(*read(), partial(names.takes, client))
        self._tell(client, others)
        return examples, metrics

    def _tell(self, client: int, left_out: Mapping[str, str]) -> None:
        """Log some of a client's metrics that are left out, each once, with the reason."""
        told = self._told.setdefault(client, set())
        for name, reason in left_out.items():
            if name in told or len(told) > _TOLD or self._lines >= _LINES:
                continue
            told.add(name)
            self._lines += 1
            what, why = f"its metric {incoming.readable(name)} is", f": {reason}"
            if len(told) > _TOLD:
                what, why = "more of its metrics are", ""
            _log.warning("client %s: %s left out%s", self._names[client], what, why)

    def _own_names(self, answers: Answers) -> Answers:
        """Return answers without metrics that would be columns of other clients.

        Log if one client's examples decide what the means of the others are.
        """
        names = {name for _, metrics in answers.values() for name in metrics}
        if odd := of_single_clients(names, self._names):
            reason = "it is the name of one client's column"
            for client, (_, metrics) in answers.items():
                self._tell(client, dict.fromkeys(metrics.keys() & odd, reason))
            answers = {
                client: (n, {name: m for name, m in metrics.items() if name not in odd})
                for client, (n, metrics) in answers.items()
            }
        if len(answers) > 2 and not self._alone:
            first = max(answers, key=lambda client: answers[client][0])
            share = answers[first][0] / math.fsum(n for n, _ in answers.values())
            if share > _ALONE:
                self._alone = True
                _log.warning(
                    'client %s has %.1f%% of the weight in the means of metrics, by the '
                    '"num-examples" that it replies: if it counts no examples, correct it in its '
                    "app",
                    self._names[first], 100 * share,
                )  # fmt: skip
        return answers

    def _each(self, answers: Answers) -> Record:
        """Return the metrics of each client ("name/client"), unless there are too many."""
        by_client: Record = {}
        if len(self._names) <= _EACH:
            for client, (_, metrics) in sorted(answers.items()):
                own = {n: value for n, value in metrics.items() if not math.isnan(value)}
                by_client |= {f"{n}/{self._names[client]}": value for n, value in own.items()}
        return by_client

    def _over(self, answers: Answers, asked: int) -> list[str]:
        """Return over how many clients metrics are averaged that are no numbers at some."""
        number, over = self._server.round, list[str]()
        for name in dict.fromkeys(name for _, metrics in answers.values() for name in metrics):
            own = {client: m[name] for client, (_, m) in answers.items() if name in m}
            without = [client for client, value in own.items() if math.isnan(value)]
            for client in without:
                seen = self._lacking.setdefault((name, client), [0, number, 0])
                seen[0], seen[2] = seen[0] + (number != seen[2]), number
            if without:
                over.append(f"{name} over {len(own) - len(without)} of {asked} clients")
        return over


def _means(answers: Answers) -> Record:
    """Return the metrics' means, weighted by examples, each over the clients that report it."""
    means: Record = {}
    ordered = [answer for _, answer in sorted(answers.items())]
    for name in dict.fromkeys(n for _, metrics in ordered for n in metrics):
        pairs = [(n, metrics.get(name, math.nan)) for n, metrics in ordered]
        pairs = [(n, value) for n, value in pairs if not math.isnan(value)]
        if total := math.fsum(n for n, _ in pairs):
            means[name] = math.fsum(n * value for n, value in pairs) / total
    return means


def _bytes(buffers: Sequence[Array]) -> int:
    return sum(array_bytes(b.shape, b.dtype) for b in buffers)


def _checked(
    metrics: Mapping[str, Any], examples: Any, takes: Callable[[str], bool]
) -> tuple[float, dict[str, float], dict[str, str]]:
    """Return a client's examples and metrics; by name, why other metrics cannot be used.

    `takes` says whether a name still has a place. A value that is no number is NaN, and unusable.

    Raises
    ------
    ConfigError, RefusedError
        If the number of examples is not valid.
    """
    if examples == 0:
        raise RefusedError("refused: it has no examples, so it does not count")
    if not usable(examples) or not 1 / MOST_EXAMPLES <= examples <= MOST_EXAMPLES:
        raise ConfigError(
            f"its num-examples is {incoming.shown(examples)}, expected a number above 0 "
            f"and at most {MOST_EXAMPLES:g}"
        )
    numbers, others = dict[str, float](), dict[str, str]()
    for name, value in flat_metrics(metrics).items():
        try:
            check_metric_names([name])
        except ConfigError as error:
            others[str(name)[:100]] = str(error)
            continue
        if not takes(name):
            others[name] = f"it is one of more than {MOST_METRICS}"
            continue
        numbers[name] = float(value) if usable(value) else math.nan
        if not usable(value):
            others[name] = "it is not a number that can be averaged"
    return float(examples), numbers, others
