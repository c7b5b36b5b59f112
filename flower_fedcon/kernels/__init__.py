"""Compiled loops: `compiled` holds them, `dispatch` decides whether they are used.

`custom_calls` hands them to XLA, whose rounds call them.
"""
