"""Interleaving: every item once, no team favoured, and a preference that is as sure as it says."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.experiment import Audience, Visits, interleaved, study_interleaving
from seq2slate.errors import UsageError
from seq2slate.experiments.interleaving import Team, credit_clicks, interleave, log_propensities, preference_from_clicks

ITEMS = list("abcdefg")


@given(st.permutations(ITEMS), st.permutations(ITEMS), st.integers(0, 9), st.integers(0, 7), st.integers(0, 2**32))
def test_every_item_once_and_every_team_its_best(a: list[str], b: list[str], k: int, cut: int, seed: int) -> None:
    a = a[: len(a) - cut // 2]
    slate, teams = interleave(a, b, k, np.random.default_rng(seed))
    assert len(slate) == len(teams) == min(k, len(a), len(b))
    assert len(set(slate)) == len(slate)
    for slot, (item, team) in enumerate(zip(slate, teams, strict=True)):
        ranking = a if team == "a" else b
        assert item == next(one for one in ranking if one not in slate[:slot])
    for start in range(0, len(teams) - 1, 2):
        assert set(teams[start : start + 2]) == {"a", "b"}  # a round: each picks once


def test_propensities_are_those_of_all_coins() -> None:
    """Every way that the coins can fall, counted: the chance of an item given those above it."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        a, b = (rng.permutation(6).tolist() for _ in range(2))
        slates = Counter(tuple(drafted(a, b, coins)) for coins in product((0, 1), repeat=3))
        for slate in slates:
            above = [sum(n for one, n in slates.items() if one[:slot] == slate[:slot]) for slot in range(6)]
            expected = np.log(np.array([*above[1:], slates[slate]]) / above)
            assert log_propensities(a, b, slate) == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_long_slate_has_propensities_of_coins() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.permutation(1000).tolist() for _ in range(2))
    slate, _ = interleave(a, b, 1000, rng)
    logs = np.array(log_propensities(a, b, slate))
    assert set(logs) <= {0.0, -np.log(2)}
    assert (logs.reshape(-1, 2) < 0).sum(axis=1).max() == 1  # one coin a round


def drafted(a: list[int], b: list[int], coins: Sequence[int]) -> list[int]:
    """A team draft with coins that are known."""
    slate: list[int] = []
    for coin in coins:
        for ranking in (b, a) if coin else (a, b):
            slate.append(next(item for item in ranking if item not in slate))
    return slate


def test_the_same_generator_gives_the_same_draft() -> None:
    drafts = [interleave(ITEMS, ITEMS[::-1], 5, np.random.default_rng(4)) for _ in range(2)]
    assert drafts[0] == drafts[1]


def test_every_slot_belongs_to_either_team_as_often() -> None:
    rng = np.random.default_rng(0)
    by_b = np.array([[team == "b" for team in interleave(ITEMS, ITEMS[::-1], 5, rng)[1]] for _ in range(4000)])
    assert by_b.mean(axis=0) == pytest.approx(np.full(5, 0.5), abs=4 * 0.5 / 4000**0.5)


def test_a_slate_without_items_or_slots_is_empty() -> None:
    rng = np.random.default_rng(0)
    assert interleave([], ["x"], 3, rng) == ([], [])
    assert interleave(["x"], ["x"], 0, rng) == ([], [])
    assert interleave(["x"], ["x"], 3, rng)[0] == ["x"]


def test_invalid_input_is_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="the slate of b repeats an item"):
        interleave(["x"], ["y", "y"], 1, rng)
    with pytest.raises(UsageError, match="-1 slots"):
        interleave(["x"], ["y"], -1, rng)
    for wrong in ([1, 2], [[1, 2, 3]], [[0.5, 1.0]], [[-1, 2]]):
        with pytest.raises(UsageError, match="two counts for each unit"):
            preference_from_clicks(wrong)


def test_clicks_are_credited_to_whoever_placed_the_item() -> None:
    teams: list[Team] = ["a", "b", "b", "a"]
    assert credit_clicks(teams, [1, 2, 3]) == (1, 2)
    assert credit_clicks(teams, []) == (0, 0)


@pytest.mark.parametrize(
    ("credits_of_units", "estimate"),
    [([], None), ([(0, 0), (0, 0)], None), ([(1, 3)], 0.5), ([(0, 2), (0, 1)], 1.0), ([(2, 2), (1, 1), (0, 0)], 0.0)],
)
def test_units_without_spread_give_no_interval(credits_of_units: Any, estimate: float | None) -> None:
    found = preference_from_clicks(credits_of_units)
    assert found.estimate == estimate
    assert (found.fixed_horizon, found.fixed_horizon_p, found.always_valid, found.always_valid_p) == (None,) * 4


def test_the_preference_equals_the_delta_method_on_the_units() -> None:
    table = np.random.default_rng(3).poisson((2.0, 3.0), (200, 2))
    found = preference_from_clicks(np.concatenate([table, np.zeros((50, 2), dtype=int)]))
    table = table[table.sum(axis=1) > 0]
    lead, total = table[:, 1] - table[:, 0], table.sum(axis=1)
    error = (lead - lead.sum() / total.sum() * total).std(ddof=1) / len(table) ** 0.5 / total.mean()
    assert found.units == len(table)
    assert found.estimate == pytest.approx(lead.sum() / total.sum())
    assert found.fixed_horizon is not None
    assert found.fixed_horizon.low == pytest.approx(lead.sum() / total.sum() - stats.norm.ppf(0.975) * error)
    assert found.fixed_horizon_p == pytest.approx(2 * stats.norm.sf(abs(lead.sum() / total.sum()) / error))
    drawn = np.random.default_rng(0).integers(len(table), size=(5000, len(table)))
    assert (lead[drawn].sum(axis=1) / total[drawn].sum(axis=1)).std() == pytest.approx(error, rel=0.05)


def test_equal_rankers_are_not_told_apart() -> None:
    """Many tests with the same order on both sides: the mean preference is 0, and 95% of the intervals hold it."""
    audience = Audience(200, k=10, noise=0.0, seed=1)
    assert (audience.better == audience.worse).all()
    rng = np.random.default_rng(2)
    visits = Visits.draw(rng, 9000, 200, visits=2)
    tests = [preference_from_clicks(part) for part in np.array_split(interleaved(audience, visits, rng), 300)]
    estimates = np.array([test.estimate for test in tests], dtype=float)
    assert abs(estimates.mean()) < 4 * estimates.std() / len(tests) ** 0.5
    intervals = [test.fixed_horizon for test in tests]
    covered = np.mean([one is not None and one.low <= 0 <= one.high for one in intervals])
    assert abs(covered - 0.95) <= 0.04


def test_interleaving_needs_far_fewer_slates_than_two_arms() -> None:
    study = study_interleaving(seed=3, units=1500, runs=100)
    assert study["lift"] > 0
    assert study["preference"] > 0
    assert study["ratio"] > 10
    planned = [
        row["power"]
        for row in study["powers"]
        if row["slates"] == pytest.approx(study["slates needed"][row["method"]], rel=0.02)
    ]
    assert planned == pytest.approx([0.8, 0.8], abs=0.15)
