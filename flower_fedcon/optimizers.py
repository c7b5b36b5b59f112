from flower_fedcon.server.optimizers import *
from flower_fedcon.server.optimizers import __all__ as __all__
from flower_fedcon.server.optimizers import __doc__ as __doc__
