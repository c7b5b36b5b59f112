"""What an algorithm, of the collection or of your own, is held to: `check_algorithm`."""

from flower_fedcon.testing.check import CHECKS, check_algorithm
from flower_fedcon.testing.problems import default_problem

__all__ = ["CHECKS", "check_algorithm", "default_problem"]
