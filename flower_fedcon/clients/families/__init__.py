"""Common parts of clients' local steps."""
