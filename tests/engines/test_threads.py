"""How many threads a loop gets: whichever number is faster, on a machine that others use, too."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

numba = pytest.importorskip("numba", reason="the extra `fast` is not installed")
threads = pytest.importorskip("flower_fedcon.kernels.threads")


def quiet():
    """Return what a process has used that nothing has preempted."""
    return 0.0, 0.0


def spent(pace, calls, one, every, seed=0):
    """Return the seconds of so many calls; `one` and `every` give those of the next call."""
    rng, seconds = np.random.default_rng(seed), []
    for _ in range(calls):
        seconds.append((one if pace.alone else every)() * rng.uniform(1.0, 1.1))
        pace.note("loop", seconds[-1])
    return np.array(seconds)


def constant(seconds):
    return lambda: seconds


@pytest.mark.parametrize("scale", [1e-4, 1.0])
@pytest.mark.parametrize(("one", "every"), [(1.0, 9.0), (1.6, 1.0), (1.0, 1.02)])
def test_the_choice_costs_no_tenth_more_than_the_better_number(one, every, scale):
    """Of short calls and of long ones, and once the better number is the other one."""
    pace = threads.Pace(quiet)
    for now in ((one, every), (every, one)):
        seconds = spent(pace, 40_000, *(constant(s * scale) for s in now))
        best = 1.05 * min(now) * scale
        assert seconds[:20_000].mean() <= 1.5 * best
        assert seconds[20_000:].mean() <= 1.1 * best


ROUNDS = {  # seconds of each loop on one thread and on all, and how often it is called in turn
    "short": [(3e-4, 1.5e-4, 1), (4e-5, 4.5e-5, 1), (1e-5, 1.5e-5, 1), (1e-5, 1.5e-5, 1)],
    "long": [(0.3, 0.1, 1), (0.04, 0.045, 1), (0.01, 0.015, 1), (0.01, 0.015, 1)],
    "long one last": [(0.01, 0.015, 1), (0.04, 0.045, 1), (0.01, 0.015, 1), (0.3, 0.1, 1)],
    "long one among others": [(0.3, 0.1, 1), (5e-3, 6e-3, 4)],
    "rare and longer on all": [(0.05, 1.0, 1), (1e-4, 8e-5, 200)],
    "rare and shorter on all": [(0.05, 0.015, 1), (1e-4, 1.1e-4, 200)],
    "steps and losses": [(1.5e-4, 1.2e-4, 100), (0.02, 0.06, 1)],
}


@pytest.mark.parametrize("kind", ROUNDS)
def test_what_takes_most_of_a_round_decides(kind):
    """Also if it is called once in longer than a trial."""
    best = min(sum(times * own[i] for *own, times in ROUNDS[kind]) for i in (0, 1))
    pace, seconds = threads.Pace(quiet), []
    for _ in range(400):
        seconds.append(0.0)
        for loop, (one, every, times) in enumerate(ROUNDS[kind]):
            for _ in range(times):
                took = one if pace.alone else every
                pace.note(loop, took)
                seconds[-1] += took
    assert np.mean(seconds[200:]) <= 1.1 * best


def test_calls_of_ever_new_sizes_are_not_all_trials():
    pace, seconds = threads.Pace(quiet), []
    for k in range(50_000):
        seconds.append(1e-4 if pace.alone else 1e-3)
        pace.note(k // 100, seconds[-1])
    assert np.mean(seconds) <= 1.1 * 1e-4


def test_the_first_calls_choose_already():
    """Four of each."""
    for one, every in ((1.0, 3.0), (3.0, 1.0)):
        seconds = spent(threads.Pace(quiet), 20, constant(one), constant(every))
        assert (seconds[8:] < 2.0).sum() >= 8


def test_stalls_count_though_most_calls_have_none():
    """Beside a busy process most calls are twice as fast on all threads, and some wait 8 ms."""
    rng = np.random.default_rng(1)
    every = lambda: 7.7e-3 if rng.random() < 0.03 else 4.5e-5  # noqa: E731
    seconds = spent(threads.Pace(quiet), 60_000, constant(9e-5), every)
    assert seconds[20_000:].mean() <= 1.1 * 1.05 * 9e-5


def test_what_waits_for_a_compiler_does_not_decide():
    """A first call is not counted; of a later one only what threads could be to blame for."""
    waits = iter([3.0, *[1e-4] * 5_000, 3.0])
    seconds = spent(threads.Pace(quiet), 60_000, constant(2e-4), lambda: next(waits, 1e-4))
    assert (seconds > 1.0).sum() == 2
    assert seconds[-20_000:].mean() <= 1.1 * 1.05 * 1e-4


def test_short_calls_are_timed_while_the_threads_are_awake():
    """They are faster on all threads, but for the one that wakes them."""
    pace, asleep, seconds = threads.Pace(quiet), True, []
    for _ in range(4_000):
        alone = pace.alone
        seconds.append(4e-5 if alone else 2.5e-5 + 6e-5 * asleep)
        pace.note("loop", seconds[-1])
        asleep = alone
    assert np.mean(seconds[2_000:]) <= 1.1 * 2.5e-5


def test_blocks_of_rounds_count_as_many_calls():
    """A round of the long ones, on one thread, takes a third of one of the short ones, on all."""
    pace, alone = threads.Pace(quiet), []
    for _ in range(2_000):
        alone.append(pace.alone)
        rounds, each = (100, 1e-4) if pace.alone else (10, 3e-4)
        pace.note("loop", rounds * each, rounds)
    assert np.mean(alone) >= 0.9


def test_one_thread_is_never_compared_with_itself(monkeypatch):
    """So that the loop's other form is not compiled for nothing."""
    monkeypatch.setattr(numba, "get_num_threads", lambda: 1)
    pace, called = threads.Pace(quiet), []
    for _ in range(50):
        pace.call("loop", (lambda: called.append(False), lambda: called.append(True)), ())
    assert called == [True] * 50


def test_a_call_that_fails_is_no_trial(monkeypatch):
    monkeypatch.setattr(numba, "get_num_threads", lambda: 2)
    pace, called = threads.Pace(quiet), []

    def fails(alone):
        called.append(alone)
        raise ValueError("no")

    for _ in range(50):
        with pytest.raises(ValueError, match="no"):
            pace.call("loop", (partial(fails, False), partial(fails, True)), ())
    assert called == [True] * 50


@pytest.mark.parametrize("share", [0.0, 0.04, 0.3])
@pytest.mark.parametrize("stalls", [(1.0, 1.0), (1.0, 20.0), (20.0, 1.0)])
def test_a_method_that_follows_another_is_timed_on_its_own(share, stalls):
    """What the first one called is not waited for; some of both may be in one trial."""
    pace, rng = threads.Pace(quiet), np.random.default_rng(0)

    def play(loop, one, every):
        took = (one if pace.alone else every) * rng.uniform(1.0, 1.1)
        pace.note(loop, took)
        return took

    for _ in range(20_000):
        play("first", 6e-5, 6.5e-5)
    for _ in range(int(share * 160)):  # of a trial of 10 ms
        play("first", 6e-5, 6.5e-5)
        play("second", 2e-4, 1e-4)
    one, every = 2e-4 * stalls[0], 1e-4 * stalls[1]
    seconds = [play("second", one, every) for _ in range(4_000)]
    worse = np.array(seconds) > 1.15 * min(one, every)
    assert np.sum(seconds[1_000:]) <= 1.1 * 1.05 * 3_000 * min(one, every)
    assert np.sum(np.array(seconds)[worse]) <= 0.3 * max(stalls)


@pytest.mark.parametrize(("often", "most"), [(3, 0.02), (140, 0.003)])
def test_where_one_thread_is_preempted_all_are_tried_seldom(often, most):
    """So often in a second on a core, of which others have a third."""
    used, every = 0.0, []
    pace = threads.Pace(lambda: (often * used, used))
    for _ in range(60_000):
        took = 1e-4 if pace.alone else 4e-4
        every.append(took * (not pace.alone))
        used += took / 1.5
        pace.note("loop", took)
    assert 0 < np.sum(every[20_000:]) <= most * 4.0


def test_what_else_the_process_does_is_no_reason():
    """Preempted are other threads of it, which use ten times the loops' seconds."""
    used, seconds = 0.0, []
    pace = threads.Pace(lambda: (140 * used, used))
    for k in range(40_000):
        every = 4e-4 if k < 20_000 else 5e-5
        seconds.append(1e-4 if pace.alone else every)
        used += 10 * seconds[-1]
        pace.note("loop", seconds[-1])
    assert np.mean(seconds[28_000:]) <= 1.1 * 5e-5


def test_once_nobody_is_busy_all_threads_are_chosen_soon():
    """Within two seconds, after four in which one was preempted."""
    now, preempted, late = 0.0, 0.0, []
    pace = threads.Pace(lambda: (preempted, now))
    while now < 10.0:
        took = 2e-3 if pace.alone else 4e-3 if now < 4.0 else 1e-3
        preempted += took * (140 if now < 4.0 else 3)
        now += took
        if now > 6.0:
            late.append(took)
        pace.note("loop", took)
    assert np.mean(late) <= 1.1 * 1e-3


@pytest.mark.parametrize(("chance", "stall"), [(0.01, 5e-3), (0.002, 2e-2)])
def test_a_stall_now_and_then_does_not_change_the_better_number(chance, stall):
    """On a machine that has them whatever it plays, and is twice as fast on all threads."""
    rng = np.random.default_rng(2)
    pace, alone = threads.Pace(quiet), []
    for _ in range(60_000):
        alone.append(pace.alone)
        pace.note("loop", (6e-4 if pace.alone else 3e-4) + stall * (rng.random() < chance))
    assert np.mean(alone[10_000:]) <= 0.06


def test_a_trial_without_a_stall_is_not_believed_for_long():
    """Threads that have slept have a core at once, and stall 12 ms later: so is each trial."""
    rng, awake, alone = np.random.default_rng(0), 0.0, []
    pace = threads.Pace(quiet)
    for _ in range(60_000):
        alone.append(pace.alone)
        took, awake = (1e-4, 0.0) if pace.alone else (6e-5, awake)
        if awake > 0.012 and rng.random() < 0.05:
            took += 8e-3
        awake += took * (not pace.alone)
        pace.note("loop", took)
    assert np.mean(alone) >= 0.85


@pytest.mark.parametrize("loop", [2e-4, 2e-3, 2e-2])
def test_under_a_quota_on_the_cores_what_is_waited_for_counts(loop):
    """Two cores' time in each 0.1 s: all of 64 threads have used it up in 3 ms, and wait."""
    now, left, pace = 0.0, 0.2, threads.Pace(quiet)
    for _ in range(int(20.0 / loop)):
        cores, took = (1, loop) if pace.alone else (64, loop / 16)
        period = now // 0.1
        left -= cores * took
        if left < 0.0 and cores > 1:  # until the next one
            took += (period + 1) * 0.1 - now
        if (now + took) // 0.1 > period:
            left = 0.2
        now += took
        pace.note("loop", took)
    assert now <= 1.1 * 20.0  # on one thread; on all, 40 s
