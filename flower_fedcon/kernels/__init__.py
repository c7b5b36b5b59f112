"""Compiled loops, where numba is installed."""
