"""The laboratory: experiments, their claims and figures, reports, advice, benchmarks.

Only the command imports this room: a node and `simulate` run without it.
"""
