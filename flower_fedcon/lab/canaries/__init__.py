"""Audits of privacy by a canary: a mechanism is played many times with it and without it."""
