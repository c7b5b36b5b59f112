"""Statistics on tables that stay where they are: what a site sums, and what follows of the sums.

`families` says what a loss is as a likelihood, `site_sums` what a site tells at a model,
`site_fits` what it finds alone, `group_sums` what it tells of random intercepts; `estimates`,
`heterogeneity` and `intercept_variance` what a server makes of that; `answers` names what may be
asked. Nothing here knows who carries a message.
"""

from flower_fedcon.tables.statistics.answers import sums_of as sums_of
from flower_fedcon.tables.statistics.estimates import Estimates as Estimates
from flower_fedcon.tables.statistics.heterogeneity import Heterogeneity as Heterogeneity
from flower_fedcon.tables.statistics.heterogeneity import found_by_sites as found_by_sites
from flower_fedcon.tables.statistics.heterogeneity import heterogeneity_of as heterogeneity_of
from flower_fedcon.tables.statistics.intercept_variance import RandomFit as RandomFit
from flower_fedcon.tables.statistics.site_sums import METHODS as METHODS
from flower_fedcon.tables.statistics.site_sums import free_parameters as free_parameters
from flower_fedcon.tables.statistics.site_sums import most_numbers as most_numbers
from flower_fedcon.tables.statistics.site_sums import set_clusters as set_clusters
