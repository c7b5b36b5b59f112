"""All that speaks Flower.

`apps` builds the two apps, `strategy` and `client` are what Flower calls, and `legacy` serves
`ServerAppComponents`. Below them, `grid_run` plays a run on a grid, `nodes` finds the clients and
exchanges messages, `codec` and `messages` encode requests and replies (as lists of arrays, then as
Flower's records), and `stores` keeps a client's state between messages.
"""
