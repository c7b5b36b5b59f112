"""Advice on methods for a problem, from their cards, measurements, and a short trial."""
