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
from typing import Any

from flower_fedcon.errors import FedConError

_LAST = re.compile(r"^flower_fedcon(?:\.\w+)+Error: (.+)$", re.MULTILINE)
_OF_CLIENTS = "ClientApp"  # in Flower's sentence about the app that has failed
_REMOTE = "ClientAppException"  # of the simulation, around an exception from another process
_CRASH = "Exit Code: "


class OneSentence(logging.Filter):
    """Filters the records about errors of this package, which a process logs once it has failed."""

    _told = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten a record of such an error; leave out what only repeats it."""
        if record.levelno < logging.ERROR:
            return True
        message = record.getMessage()
        if record.exc_info and isinstance(error := record.exc_info[1], FedConError):
            self._told = str(error)
            of_client = message.startswith(_OF_CLIENTS)
            how = "this node answers with an error" if of_client else "the run has failed"
            _debug(message, exc_info=record.exc_info)
            record.msg, record.args = "%s: %s", (how, error)
            record.exc_info = record.exc_text = None
            return True
        if _REMOTE in message and (named := _LAST.findall(message)):
            _debug(message)
            repeated, self._told = self._told == named[-1], named[-1]
            record.msg, record.args = "a node answers with an error: %s", (named[-1],)
            return not repeated
        if self._told and message.startswith(_CRASH):
            _debug(message)
            return False
        return True


def _debug(message: str, exc_info: Any = None) -> None:
    logging.getLogger("flwr").debug("%s", message, exc_info=exc_info)
