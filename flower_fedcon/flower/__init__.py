"""All that speaks Flower.

`apps` builds the two apps, `strategy` and `client` are what Flower calls, and `legacy` serves
`ServerAppComponents`. Below them, `grid_run` plays a run on a grid, `nodes` knows which node is
which client, `mail` exchanges messages, `codec` and `messages` encode requests and replies (as
lists of arrays, then as Flower's records), `incoming` parses what comes from a node, and `stores`
keeps a client's state between messages.
"""
