"""What a method's server needs of a round's uploads: their sum, or each one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Release:
    """Whether the server needs only the sum of a round's uploads.

    If the sum is divided, the divisor must be known before the round. Such a sum may have noise
    (differential privacy), or be all that the server sees (secure aggregation). A test checks each
    method: different uploads with the same sum must leave the server in the same state.

    Parameters
    ----------
    form : str
        The form of the method in which the sum suffices, such as "without mirror"; "" for all.
    about : dict
        For uploads that are points rather than changes: the broadcast value next to which each
        lies. The difference from this value is released.
    single : str
        Why the server needs each upload in every form of the method; "" if the sum suffices in some
        form.

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
