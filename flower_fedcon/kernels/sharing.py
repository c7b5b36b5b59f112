"""A custom call's work in parts, which XLA's own threads take beside the one that makes the call.

numba's threads would be another team for each of XLA's threads that makes a call, and teams take
the cores from one another. What a call shares is in a slot, words of memory that stay:

    0 whether a call has it   1 claims   2 parts done   3, 4 the call's lists   5 its clients
    6 its parts   7 the task that XLA's threads run   8 to 12 what XLA is handed

Claims are the number of the call, and of the parts that nobody has begun the end and the beginning.
The thread that calls takes the first one, others the last, so that in each call of a loop a core
meets the clients whose data it has. A task needs no more than the slot: one that comes late may
serve the next call of the same loop, or finds that no part is left. Nobody waits for a part that no
thread has begun.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from flower_fedcon.kernels.frames import schedules, words
from flower_fedcon.kernels.jit import jit
from flower_fedcon.validation import Array

_BUSY, _CLAIMS, _DONE, _GIVEN, _RESULTS, _CLIENTS, _PARTS, _TASK, _HANDED = range(9)
_WORDS = 16  # of a slot: two cache lines
_EACH = 4  # parts for each thread: one that begins late takes fewer
_PART = 2**16  # claims are (call * _PART + end) * _PART + beginning


def slots(count: int) -> Array:
    """Return memory for slots, which no call has yet."""
    return np.zeros((count, _WORDS), np.int64)


def give_task(slot: Array, address: int) -> None:
    """Say what XLA's threads are to run for the calls of a slot: a function of its address."""
    slot[_TASK] = address


def _word(builder: Any, slot: Any, place: Any) -> Any:
    start = builder.inttoptr(slot, ir.IntType(64).as_pointer())
    return builder.gep(start, [place])


def _exchange(typing: Any, slot: Any, place: Any, old: Any, new: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        slot, place, old, new = arguments
        where = _word(builder, slot, place)
        return builder.extract_value(builder.cmpxchg(where, old, new, "seq_cst", "seq_cst"), 1)

    return types.boolean(*(types.int64,) * 4), generate


def _add(typing: Any, slot: Any, place: Any, amount: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        slot, place, amount = arguments
        return builder.atomic_rmw("add", _word(builder, slot, place), amount, "seq_cst")

    return types.int64(*(types.int64,) * 3), generate


# Each is one step to all threads, and takes a slot's address and the place of a word.
_exchanged: Any = intrinsic(_exchange)  # writes `new` if `old` was there; whether it was
_added: Any = intrinsic(_add)  # what was there


@jit
def claimed(slot: Any, last: Any) -> Any:
    """Return the first or the last part of a slot's call that nobody has begun; -1 for none."""
    while True:
        claims = _added(slot, _CLAIMS, 0)
        end, beginning = claims // _PART % _PART, claims % _PART
        if beginning >= end:
            return -1
        if _exchanged(slot, _CLAIMS, claims, claims - _PART if last else claims + 1):
            return end - 1 if last else beginning


@jit
def told(slot: Any, part: Any) -> Any:
    """Return the lists of a part's call, and the first client of the part and that of the next."""
    have = words(slot, _WORDS)
    count, parts = have[_CLIENTS], have[_PARTS]
    return have[_GIVEN], have[_RESULTS], part * count // parts, (part + 1) * count // parts


@jit
def finish(slot: Any) -> None:
    """Note that a part is done."""
    _added(slot, _DONE, 1)


@jit
def offer(slot: Any, frame: Any, given: Any, results: Any, clients: Any, threads: Any) -> Any:
    """Have XLA's threads take parts of a call; return how many parts there are.

    None, 0, if another call of the same loop has the slot.
    """
    if not _exchanged(slot, _BUSY, 0, 1):
        return 0
    have = words(slot, _WORDS)
    parts = min(clients, _EACH * threads)
    have[_DONE], have[_GIVEN], have[_RESULTS] = 0, given, results
    have[_CLIENTS], have[_PARTS] = clients, parts
    last = _added(slot, _CLAIMS, 0)  # nobody else changes it, as no part is left
    _exchanged(slot, _CLAIMS, last, ((last // _PART // _PART + 1) * _PART + parts) * _PART)
    for _ in range(min(threads, parts) - 1):
        if not schedules(frame, slot + 8 * _HANDED, have[_TASK], slot):
            break
    return parts


@jit
def wait(slot: Any, parts: Any) -> None:
    """Wait for the parts that other threads have begun, and leave the slot to another call."""
    while _added(slot, _DONE, 0) < parts:
        pass
    _exchanged(slot, _BUSY, 1, 0)
