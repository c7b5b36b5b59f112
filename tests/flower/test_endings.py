"""How an app that fails ends in Flower's log."""

from __future__ import annotations

import logging
from logging import ERROR

import pytest
from flwr.clientapp.client_app import ClientAppException
from flwr.common.logger import log

import flower_fedcon.flower  # noqa: F401  (its import is what is tested)
from flower_fedcon.errors import ConfigError, FedConError, MissingExtraError, RoundError
from flower_fedcon.flower.endings import OneSentence
from flower_fedcon.flower.messages import _failure
from flower_fedcon.strategies import FedAvg
from flower_fedcon.tables.misfits import DataError

CRASH = "Exit Code: 201\n\nAn unhandled exception occurred in the ServerApp.\n\nFor more"


class Terminal(logging.Handler):
    """What Flower's console shows: no record below the level INFO."""

    def __init__(self, level):
        super().__init__(level)
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))


@pytest.fixture
def shown():
    """What the terminal and the log's debug level show."""
    found = [Terminal(logging.INFO), Terminal(logging.DEBUG)]
    logger = logging.getLogger("flwr")
    level = logger.level
    for handler in found:
        logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    (filtering,) = [f for f in logger.filters if isinstance(f, OneSentence)]
    filtering._told = ""
    yield found
    filtering._told = ""
    logger.setLevel(level)
    for handler in found:
        logger.removeHandler(handler)


def ended(app, error, entity="ServerApp"):
    """Log an app's error as Flower's processes do."""
    try:
        app()
    except error as caught:
        log(ERROR, "%s raised an exception", entity, exc_info=caught)
    log(ERROR, CRASH)


RUN, NODE = "the run has failed: ", "a node answers with an error: "


@pytest.mark.parametrize(
    ("entity", "error", "begins"),
    [
        ("ServerApp", ConfigError("client_lr must be > 0"), RUN),
        ("Simulation", ConfigError("client_lr must be > 0"), RUN),
        ("ServerApp", RoundError("round 3: no replies"), RUN),
        ("ServerApp", MissingExtraError("pip install 'x[y]'"), RUN),
        ("ServerApp", DataError("row"), RUN),
        ("ClientApp", ConfigError("client_lr must be > 0"), NODE),
    ],
)
def test_an_error_of_this_package_is_one_sentence(shown, entity, error, begins):
    """Of every kind; its traceback is in the debug log."""

    def app():
        raise error

    terminal, debug = shown
    ended(app, FedConError, entity)
    assert terminal.lines == [f"{begins}{error}"]
    traced, told, last = debug.lines
    assert traced.startswith(f"{entity} raised an exception\nTraceback (most recent call last)")
    assert "in ended" in traced
    assert (told, last) == (f"{begins}{error}", CRASH)


@pytest.mark.parametrize("error", [KeyError("lr"), RuntimeError("no"), ImportError("gone")])
def test_a_bug_keeps_its_traceback(shown, error):
    """So does one that stands on an error of this package, which the app's code has caught."""

    def app():
        try:
            FedAvg(client_lr=-1.0)
        except ConfigError as caught:
            raise error from caught

    ended(app, type(error))
    traced, crash = shown[0].lines
    assert "in app" in traced
    assert crash == CRASH
    assert traced.count("Traceback (most recent call last)") == 2


def test_a_bug_after_another_error_keeps_flower_s_last_words(shown):
    with pytest.raises(ConfigError) as caught:
        FedAvg(client_lr=-1.0)
    log(ERROR, "%s raised an exception", "ClientApp", exc_info=caught.value)
    ended(lambda: {}["lr"], KeyError)
    told, traced, crash = shown[0].lines
    assert told.endswith("got -1.0")
    assert "KeyError: 'lr'" in traced
    assert crash == CRASH


def test_a_second_error_is_told_as_well(shown):
    for lr in (-1.0, -2.0, -2.0):
        ended(lambda lr=lr: FedAvg(client_lr=lr), ConfigError)
    assert [line[-8:] for line in shown[0].lines] == ["got -1.0", "got -2.0"]


def test_an_error_from_another_process_of_the_simulation_is_told_once(shown):
    """It comes as text, in three records for each message."""
    remote = (
        "\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=7)\n  File app.py, line 3, in client_fn\n"
        "flower_fedcon.errors.ConfigError: policy.min-rows must be a whole number >= 1, got -1\n\n"
        "The above exception was the direct cause of the following exception:\n"
        "flwr.clientapp.client_app.ClientAppException: \nException ClientAppException occurred. "
        "Message: policy.min-rows must be a whole number >= 1, got -1"
    )
    for _ in range(2):
        log(ERROR, ClientAppException(remote))
        log(ERROR, f"Traceback (most recent call last):\n{remote}")
    said = "a node answers with an error: policy.min-rows must be a whole number >= 1, got -1"
    assert shown[0].lines == [said]
    bug = remote.replace("flower_fedcon.errors.ConfigError", "ValueError")
    log(ERROR, f"Traceback (most recent call last):\n{bug}")
    assert "ray::ClientAppActor.run()" in shown[0].lines[-1]


def test_the_server_quotes_it_without_flower_s_words():
    kind = "flower_fedcon.tables.misfits.DataError"
    assert _failure(f"<class '{kind}'>:<'row 2 is short'>") == "row 2 is short"
    assert _failure("<class 'KeyError'>:<'lr'>").startswith("the client failed: <class 'KeyError'>")
