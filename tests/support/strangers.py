"""A node on a grid in memory that is none of the run's clients."""

from __future__ import annotations

from fake_grid import FakeGrid
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from problems import q6_objectives

STRANGER = 5


def with_stranger(says, objectives=None, make=FakeGrid, **node):
    """Return a grid with one more node, that answers every message as `says` does."""

    class Grid(make):
        def replies_to(self, message):
            if message.metadata.dst_node_id != STRANGER:
                return super().replies_to(message)
            return says(self, message)

    grid = Grid(objectives or q6_objectives())
    grid.nodes = {STRANGER: Context(1, STRANGER, node, RecordDict(), {}), **grid.nodes}
    return grid


def silence(grid, message):
    return []


def error(grid, message):
    return [Message(Error(2, "Traceback ...\n\x1b[31mno file data.npz"), reply_to=message)]


def garbage(grid, message):
    return [Message(RecordDict({"x": ConfigRecord({"a": 1})}), reply_to=message)]


def says(**fields):
    """Return a stranger that describes itself so, beside what is right."""

    def answer(grid, message):
        right = {"num-examples": 1, "name": "stranger"}
        config = {k: v for k, v in {**right, **fields}.items() if v is not None}
        return [described(message, config)]

    return answer


def described(message, config):
    content = RecordDict(
        {
            "fitres.parameters": ArrayRecord({}),
            "fitres.num_examples": ConfigRecord({"num_examples": 1}),
            "fitres.metrics": ConfigRecord(config),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )
    return Message(content, reply_to=message)
