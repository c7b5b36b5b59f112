from flower_fedcon.server.aggregation import *
from flower_fedcon.server.aggregation import __all__ as __all__
from flower_fedcon.server.aggregation import __doc__ as __doc__
