"""What several strategies share: arguments, checks, mirrors, and the steps that are the same."""
