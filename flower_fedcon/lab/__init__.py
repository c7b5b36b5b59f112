"""The laboratory: experiments, their claims and figures, reports, advice, benchmarks.

No other room imports this one, but for the command: a node and `simulate` run without it.
"""
