"""What a command of `fedcon` is: a function, its place in the help, and examples.

A room's commands are in the modules of its folder `commands/`, each in a dictionary `COMMANDS` by
the words that call it, such as "data check". The command line finds them there. It imports these
modules for every help, so a command imports what it works with when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


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
