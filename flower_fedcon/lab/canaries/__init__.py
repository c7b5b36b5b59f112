"""Audits of privacy by a canary: a mechanism is run many times with and without it."""
