"""A run from its first round to its last, and the files that it writes.

`run` is the loop over rounds. `directory` is the folder, `history` has the rows and the model in
it, `checkpoint` is what a later start resumes from, and `certificates` measures how far a model is
from a solution.
"""
