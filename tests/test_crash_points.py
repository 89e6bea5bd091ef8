"""Killed or failed at calls that change a file: what was acknowledged is there, and nothing is left behind."""

import sys

import pytest

from benchmarks import crash_points
from benchmarks.crash_scenarios import SCENARIOS


@pytest.mark.slow
def test_a_kill_or_failure_at_a_call_loses_nothing_and_leaves_nothing_behind() -> None:
    outcome = crash_points.run(most=6)
    if outcome is None:
        pytest.skip("there is no C compiler for the library that counts calls")
    assert not outcome.failures, outcome.failures[:3]
    assert outcome.calls.keys() == SCENARIOS.keys()
    for name in SCENARIOS:
        assert outcome.interrupted[name, "kill"] > 3, f"{name}: the calls were not reached"


def test_crash_points_are_spread_over_all_calls() -> None:
    assert crash_points._spread(5, sys.maxsize) == [1, 2, 3, 4, 5]
    assert crash_points._spread(100, 4) == [1, 34, 67, 100]
