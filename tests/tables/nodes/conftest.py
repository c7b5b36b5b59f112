"""The fixtures of tests that play runs on nodes in memory."""

from fake_grid import identity as identity
from fake_grid import log as log
