"""The study of steps: rounds with steps by rule, race, papers' constants, or the best of a grid."""
