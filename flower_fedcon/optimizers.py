from flower_fedcon.errors import point_elsewhere
from flower_fedcon.server.optimizers import *
from flower_fedcon.server.optimizers import __all__ as __all__
from flower_fedcon.server.optimizers import __doc__ as __doc__

point_elsewhere(__name__)
