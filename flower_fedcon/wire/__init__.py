"""Arrays on a wire or in a file."""
