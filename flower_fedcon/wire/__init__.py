"""Arrays on a wire or in a file, never pickled.

`payloads` encodes and counts what requests and replies carry, `settings` brings hyperparameters and
oracles to a client, and `state_files` saves states and reads them back.
"""
