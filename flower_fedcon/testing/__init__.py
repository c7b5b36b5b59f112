"""The checks that every algorithm must pass, including your own: `check_algorithm`."""

from flower_fedcon.errors import point_elsewhere
from flower_fedcon.testing.check import CHECKS, check_algorithm
from flower_fedcon.testing.problems import default_problem

__all__ = ["CHECKS", "check_algorithm", "default_problem"]

point_elsewhere(__name__)
