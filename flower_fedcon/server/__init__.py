"""What a server may make of uploads.

`aggregation` joins them, `optimizers` take the step along their mean, and `schedules` say how long
a step is in which round. Users import the names from `flower_fedcon.aggregation`,
`flower_fedcon.optimizers` and `flower_fedcon.schedules`.
"""
