"""What a method's server needs of a round's uploads: their sum, or each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Release:
    """Whether the sum of a round's uploads is all that the server needs of them.

    The sum is divided, if it is, by a number that is known before the round. Then it may be noisy
    (differential privacy) or all that the server ever sees (secure aggregation). A test holds each
    method to it: other uploads with the same sum leave the server in the same state.

    Parameters
    ----------
    form : str
        In which form of the method it is, such as "without mirror"; "" for all.
    about : dict
        Of uploads that are no changes but points, the value of the broadcast that they lie about:
        its difference from that is what is released.
    single : str
        Why the server needs each upload, in every form; "" where some form does not.

    Examples
    --------
    >>> str(Release()), str(Release("without mirror", {"theta": "theta"}))
    ('the sum', 'the sum, without mirror, of theta - theta (sent)')
    >>> str(Release(single="each entry has other senders"))
    'each upload: each entry has other senders'
    """

    form: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    single: str = ""

    def __str__(self) -> str:
        if self.single:
            return f"each upload: {self.single}"
        form = f", {self.form}" if self.form else ""
        points = [f"{name} - {center} (sent)" for name, center in self.about.items()]
        return f"the sum{form}" + (f", of {', '.join(points)}" if points else "")
