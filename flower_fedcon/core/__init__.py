"""The exchanges of one run, in every engine: requests, replies, the gate, acknowledgements.

`protocol` has the types that the other modules share, `server` the state of a run, and `round` one
round under way. `gate` decides which replies are used, `uploads` holds what an algorithm
aggregates, `acknowledgements` changes client state exactly once, and `mirror` is the server's copy
of it. `participation` draws cohorts, `rng` makes all random streams, and `start` finds the layout
and x0.
"""
