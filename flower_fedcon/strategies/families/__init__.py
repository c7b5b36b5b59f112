"""Common parts of strategies: arguments, checks, mirrors, and common steps."""
