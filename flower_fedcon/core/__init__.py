"""One run, whatever holds its clients: what is said, asked, accepted and acknowledged.

`protocol` holds the types that all of it shares, `server` a run's state, `round` one round under
way, `gate` which replies are used, `uploads` what an algorithm aggregates, `acknowledgements`
exactly-once client state, and `mirror` the server's copy of it. `participation` draws cohorts,
`rng` is where all randomness comes from, and `start` finds the layout and x0.
"""
