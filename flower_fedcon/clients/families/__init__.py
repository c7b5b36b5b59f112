"""What several clients share of their local step."""
