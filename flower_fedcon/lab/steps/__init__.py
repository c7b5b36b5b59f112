"""The study of steps: rounds by rule, by race, by papers' constants, by the best of a grid."""
