"""What the arithmetic costs, and what everything around it: `fedcon bench`."""

from flower_fedcon.benchmarks.runner import BENCHMARKS, Result, run, to_json

__all__ = ["BENCHMARKS", "Result", "run", "to_json"]
