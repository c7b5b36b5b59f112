"""Benchmarks of the arithmetic and of the overhead around it: `fedcon bench`."""

from flower_fedcon.lab.benchmarks.measure import Result
from flower_fedcon.lab.benchmarks.suite import BENCHMARKS, ON_REQUEST, described, run, to_json

__all__ = ["BENCHMARKS", "ON_REQUEST", "Result", "described", "run", "to_json"]
