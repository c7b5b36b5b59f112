"""What a command of `fedcon` is: a function, its place in the help, and examples.

A room's commands are in the modules of its folder `commands/`, each in a dictionary `COMMANDS` by
the words that call it, such as "data check". The command line finds them there. It imports these
modules for every help, so a command imports what it works with when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flower_fedcon.errors import ConfigError


class Command:
    """A command.

    Parameters
    ----------
    run : callable
        Its parameters are the command's, as Typer reads them; its docstring is the help.
    rank : int
        Its place in the help, where lower ranks come first.
    *examples : str
        Command lines for the end of its help.
    needs : sequence of str (default: ())
        Rooms of other wings, without which there is no such command.
    """

    def __init__(
        self, run: Callable[..., None], rank: int, *examples: str, needs: Sequence[str] = ()
    ) -> None:
        self.run = run
        self.rank = rank
        self.examples = examples
        self.needs = needs


def times_in(option: str, text: str) -> list[float]:
    """Return the times that an option lists.

    Raises
    ------
    ConfigError
        If they are no numbers separated by commas.

    Examples
    --------
    >>> times_in("--grid", "30,60,90.5")
    [30.0, 60.0, 90.5]
    """
    try:
        return [float(time) for time in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option} must be times separated by commas, such as 30,60,90, got {text!r}"
        ) from None
