"""The problems of this benchmark: losses, structures, and the optimum by a solver of its own."""
