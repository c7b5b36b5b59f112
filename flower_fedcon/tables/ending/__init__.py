"""What a run on tables does after its last round: further exchanges, estimates, and a report.

`table_hook` is its part of a run (`flower_fedcon.runs.hooks`).
"""
