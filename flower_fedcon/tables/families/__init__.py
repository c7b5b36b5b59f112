"""What a table's loss is beside its objective: one file a loss, found by the file's place here.

A loss for tables is two files: one here, whose `FAMILY` is an instance of `base.Family`, and the
objective that it names. Everything else asks the family, so no other file knows the losses by name.
`register` adds a family from outside.
"""

from importlib import import_module
from pkgutil import iter_modules

from flower_fedcon.tables.families.base import Family as Family
from flower_fedcon.tables.families.base import families as families
from flower_fedcon.tables.families.base import family_of as family_of
from flower_fedcon.tables.families.base import family_of_objective as family_of_objective
from flower_fedcon.tables.families.base import names_of as names_of
from flower_fedcon.tables.families.base import register as register

for _found in iter_modules(__path__):
    _family = getattr(import_module(f"{__name__}.{_found.name}"), "FAMILY", None)
    if _family is not None:
        register(_family)
