"""What holds the clients of a run, and answers its requests.

`base` is the contract. `local` calls client objects in this process, `workers` in several, and
`stacked` serves all clients in one pass over arrays (their states: `stacked_states`). `grid` asks
the nodes of a Flower grid, and `ray` runs such a grid in Flower's simulation.
"""
