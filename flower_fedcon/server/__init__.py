"""The server's use of uploads: aggregation, optimizers, schedules.

`aggregation` combines them, `optimizers` take the step along their mean, and `schedules` set the
step length of each round. Users import the names from `flower_fedcon.aggregation`,
`flower_fedcon.optimizers` and `flower_fedcon.schedules`.
"""
