"""Compiled loops: `compiled` holds them, `dispatch` decides whether they are used."""
