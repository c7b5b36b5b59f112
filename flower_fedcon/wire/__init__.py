"""Arrays on a wire or in a file, never pickled.

`payloads` holds what requests and replies carry, with its bytes, `settings` how hyperparameters and
oracles reach a client, and `state_files` how states are saved and read back.
"""
