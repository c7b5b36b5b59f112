"""A method as Flower's log describes it: a tree of its arguments, its problem and its rounds."""

from __future__ import annotations

import logging
import re

from flwr.serverapp.strategy import Strategy

from flower_fedcon.card import first_sentence, one_line
from flower_fedcon.core.buffered import unit_of
from flower_fedcon.core.method import Method, State
from flower_fedcon.core.protocol import UNIFORM
from flower_fedcon.errors import ConfigError
from flower_fedcon.flower.refusals import check_callers

_log = logging.getLogger("flwr")


class SummarisedMethod(Method[State], Strategy):
    """A method that is also a strategy of Flower; `FlowerStrategy` adds how it is started."""

    def summary(self, weighting: str = UNIFORM) -> None:
        """Log the configuration as a tree, like Flower's strategies: clients, then arguments."""
        check_callers()  # a wrapper asks for this before round 1
        given = {name: value for name, value in self.arguments().items() if value is not None}
        whose = [n for n in ("participation", "min_replies", "aggregation") if n in given]
        sampling = {name: given.pop(name) for name in whose}
        for title, values in (("Sampling", sampling), (self.title, given)):
            _log.info("\t├──> %s:", title)
            for place, (name, value) in enumerate(values.items(), 1):
                branch = "└──" if place == len(values) else "├──"
                where = " (of clients with an objective)" if name == "local_solver" else ""
                _log.info("\t│\t%s %s: %r%s", branch, name, value, where)
        try:
            card = self.card()
        except ConfigError:  # your own algorithm need not have one
            return
        problem = one_line(card.problem)
        if weighting != UNIFORM:
            problem = re.sub(r"\(1/N\) sum_(\w)", r"sum_\1 (n_\1/n)", problem, count=1)
        _log.info("\t├──> Problem: %s", problem)
        unit = unit_of(self.participation)
        _log.info("\t└──> Each %s: %s", unit, first_sentence(card.wire))
