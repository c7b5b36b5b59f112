"""One run, whatever carries it."""
