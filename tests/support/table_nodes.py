"""Nodes in memory that read tables, and runs on them."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

from fake_grid import FakeGrid

from flower_fedcon import client_app
from flower_fedcon.strategies import FedNewton
from flower_fedcon.tables import table_of_node


@cache
def read(path, schema):
    """What `table_of_node` does, once for each file."""
    return table_of_node(schema)(SimpleNamespace(node_config={"data": path}))


def make_grid(files, schema, policy=None, **config):
    """A grid whose nodes read these files, with Flower's own policy unless another is given."""

    def make(load):
        return client_app(lambda context: read(context.node_config["data"], schema), policy=policy)

    grid = FakeGrid(files, make=make)
    for j, file in enumerate(files):
        node = grid.nodes[1000 - j].node_config
        node |= {"data": str(file), "name": file.stem, **config}
    return grid


def start(files, schema, rounds, policy=None, *, made=None, node=None, **options):
    """Return the history of a run on such nodes, by Newton's method unless another is given."""
    grid = make_grid(files, schema, policy, **(node or {}))
    return run_on(grid, schema, rounds, made=made, **options)


def run_on(grid, schema, rounds, *, made=None, **options):
    """Return the history of a run on a grid, whose clients weigh by their examples."""
    options = {"schema": schema, "weighting": "examples"} | options
    return (made or FedNewton()).start(grid, num_rounds=rounds, **options).history


def write_rows(path, head, rows):
    """Write a file of comma-separated lines; return its path."""
    path.write_text("\n".join([head, *rows]))
    return path


def same_files(one, other, *names):
    """Two run folders hold these files, byte by byte."""
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
