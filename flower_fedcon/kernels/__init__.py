"""Compiled loops: `compiled` holds them, and `dispatch` decides whether they are used."""
