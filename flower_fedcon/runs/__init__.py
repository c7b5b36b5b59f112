"""A run from its first round to its last, and what it leaves.

`run` is the loop over rounds. `directory` is the folder, `history` the rows and the model in it,
`checkpoint` what a later start resumes from, and `certificates` how far a model is from a solution.
"""
