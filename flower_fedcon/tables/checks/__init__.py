"""What is asked about tables: values, rows, columns and outcomes that are unlike elsewhere.

Each file is one kind of question: a function (names, tables) that yields sentences, and in its
docstring how often honest tables are asked about, and how many faults are found. `survey.py` asks
them in `fedcon data check`. `conspicuous` and `turned_round` are those that runs ask, too, by sums
of nodes.
"""
