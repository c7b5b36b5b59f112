"""How an app that fails ends in Flower's log: in one sentence, if its user can mend the error.

Flower logs every exception of an app with its traceback, and then that it was unhandled, which
`flwr run --stream` shows to the user. An error of this package already names the value, the valid
range and the remedy: its traceback is for the log's debug level (`FLWR_LOG_LEVEL=DEBUG`). The
exception itself goes its way, so that Flower counts the run as failed. All other exceptions are
bugs, and keep their traceback.
"""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path
from typing import Any

from flower_fedcon.errors import FedConError

_OWN = r"flower_fedcon(?:\.\w+)+Error"
_QUOTED = re.compile(rf"<class '{_OWN}'>:<'(.+)'>", re.DOTALL)  # Flower's reason for a failure
_RAISED = re.compile(rf"^{_OWN}: (.+)$", re.MULTILINE)  # in the text of a traceback
_REMOTE = "ClientAppException"  # by which the simulation carries an error from another process
_CAUSE = "\n\nThe above exception was the direct cause of the following exception:"
_LINE = re.compile(r'^ +File "(.+)", line (\d+), in (\S+)$', re.MULTILINE)
_CRASH = "Exit Code: "  # how Flower's last words begin


class OneSentence(logging.Filter):
    """Shortens the records that a process logs about an error of this package once it has failed.

    Each error is told once. The simulation logs it several times, on its way through its threads.
    """

    _told = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is logged; the record of such an error becomes its sentence."""
        if record.levelno < logging.ERROR:
            return True
        message, trace = record.getMessage(), record.exc_info
        error = _own(trace[1] if trace else sys.exc_info()[1])
        sentence = str(error) if error is not None else _quoted(message)
        ends = bool(self._told) and message.startswith(_CRASH)
        if not sentence and not ends:
            if trace:  # a bug, about which Flower's last words are right
                self._told = ""
            return True
        logging.getLogger("flwr").debug("%s", message, exc_info=trace)
        if ends or sentence == self._told:
            return False
        of_node = error is None or message.startswith("ClientApp")
        self._told = sentence
        what = "a node answers with an error" if of_node else "the run has failed"
        record.msg, record.args = "%s: %s", (what, sentence)
        record.exc_info = record.exc_text = None
        return True


def _own(error: BaseException | None) -> FedConError | None:
    """Return the error of this package that is logged, or that Flower's own errors stem from."""
    while error is not None and not isinstance(error, FedConError) and _is_flowers(error):
        error = error.__cause__
    return error if isinstance(error, FedConError) else None


def _is_flowers(error: BaseException) -> bool:
    """Return whether Flower has raised an error, not code that it calls."""
    trace: Any = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("flwr.")


def _quoted(message: str) -> str:
    return sentence_in(message) if _REMOTE in message else ""


def sentence_in(text: str) -> str:
    """Return the text of an error of this package, in Flower's words about a failure; or "".

    >>> sentence_in("<class 'flower_fedcon.errors.ConfigError'>:<'penalty must be > 0'>")
    'penalty must be > 0'
    >>> sentence_in("<class 'ValueError'>:<'no such file'>")
    ''
    """
    if (whole := _QUOTED.fullmatch(text)) is not None:
        return whole[1]
    return next(reversed(_RAISED.findall(text)), "")


def remote_cause_in(text: str) -> str:
    """Return the error of an app, and its line, in the traceback that the simulation sends; or "".

    >>> remote_cause_in("<class 'ValueError'>:<'no such file'>")
    ''
    """
    trace, cause, _ = text.partition(_CAUSE)
    if _REMOTE not in text or not cause:
        return ""
    error = trace.rpartition("\n")[2]
    own = [found for found in _LINE.findall(trace) if "site-packages" not in found[0]]
    places = [f" ({Path(file).name}:{line} in {function})" for file, line, function in own[-1:]]
    return "".join([error, *places])
