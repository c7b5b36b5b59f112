"""Statistics on tables that stay at their sites: a site's sums, and results from them.

`site_sums` computes a site's sums for a model, `site_fits` its own fits, and `group_sums` its sums
for random intercepts. `estimates`, `heterogeneity` and `intercept_variance` compute the results on
the server; `tables/wing.py` lists the requests. Nothing here depends on how messages travel.
"""

from flower_fedcon.tables.statistics.estimates import Estimates as Estimates
from flower_fedcon.tables.statistics.heterogeneity import Heterogeneity as Heterogeneity
from flower_fedcon.tables.statistics.heterogeneity import found_by_sites as found_by_sites
from flower_fedcon.tables.statistics.heterogeneity import heterogeneity_of as heterogeneity_of
from flower_fedcon.tables.statistics.intercept_variance import RandomFit as RandomFit
from flower_fedcon.tables.statistics.site_sums import METHODS as METHODS
from flower_fedcon.tables.statistics.site_sums import free_parameters as free_parameters
from flower_fedcon.tables.statistics.site_sums import most_numbers as most_numbers
from flower_fedcon.tables.statistics.site_sums import set_clusters as set_clusters
