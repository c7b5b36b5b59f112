"""Engines, which hold the clients of a run and answer its requests.

`core.engine` is their interface, and `base` serves the engines of this process. `local` calls
client objects in this process, `workers` does so in several processes, and `stacked` computes all
clients in one pass over arrays (with states in `stacked_states`). `grid` asks the nodes of a Flower
grid, and `ray` runs such a grid in Flower's simulation.
"""
