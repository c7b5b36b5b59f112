"""Everything that uses Flower.

`apps` builds the two apps, Flower calls `strategy` and `client`, and `legacy` serves
`ServerAppComponents`. Below them, `grid_run` runs a strategy on a grid, `nodes` knows the client on
each node, and `mail` exchanges messages. `codec` and `messages` encode requests and replies (as
lists of arrays, then as Flower's records), `incoming` parses what comes from a node, and `stores`
keeps a client's state between messages.
"""

import logging

from flower_fedcon.flower.endings import OneSentence

logging.getLogger("flwr").addFilter(OneSentence())
