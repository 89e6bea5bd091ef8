from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling, expected_clicks
from seq2slate.data.lists import IntArray, ItemLists
from seq2slate.data.ranker import BaseOrder, RandomOrder, Ranker
from seq2slate.errors import DataError, UsageError
from seq2slate.simulation.click_models import CLICK_MODELS, ClickModel, click_model
from tests.checks import mixed_lists
from tests.reference_clicks import expected_rates, reference_users

Doubles = npt.NDArray[np.float64]
USERS = [
    *CLICK_MODELS,
    "similar:q=0.2,distance=cosine",
    "intent:intents=2,most_clicks=1",
    "2 diverse + similar:q=0.2",
    "diverse + intent:intents=2",
    "contrast + 0.5 stopping + fatigue",
]


def small_lists(n_lists: int, n_items: int, seed: int) -> ItemLists:
    rng = np.random.default_rng(seed)
    total = n_lists * n_items
    offsets = np.arange(n_lists + 1) * n_items
    return ItemLists(rng.normal(size=(total, 3)), offsets, relevance_probability=rng.beta(0.6, 1, total))


def probability_of(lists: ItemLists) -> Doubles:
    assert lists.relevance_probability is not None
    padded: Doubles = lists.batch().pad(lists.relevance_probability.astype(np.float64))
    return padded


def enumerated_clicks(user: ClickModel, lists: ItemLists, number: int, slate: list[int]) -> Doubles:
    """The click rate of every slot: the slow sum over types of visits, relevances, and all that can happen."""
    items = slice(lists.offsets[number], lists.offsets[number + 1])
    rows, probability = lists.features[items].tolist(), probability_of(lists[number])[0].tolist()
    return np.array(expected_rates(reference_users(user), rows, probability, slate))


# The exact expectation


@pytest.mark.parametrize("text", USERS)
def test_expected_clicks_equal_the_sum_over_all_that_can_happen(text: str) -> None:
    user = click_model(text, eta=0.4)
    lists = small_lists(3, 4, seed=0)
    slates = np.array([[0, 1, 2], [3, 0, 1], [2, 3, 0]])
    for number in range(len(lists)):
        found = expected_clicks(user, slates, user.facts(lists[number], probability_of(lists[number])))
        expected = [enumerated_clicks(user, lists, number, slate).sum() for slate in slates.tolist()]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


# The ceiling of shown slates


def values_of(ranker: Ranker, user: ClickModel, lists: ItemLists, k: int) -> Doubles:
    """The expected clicks (Q,) in the top k of a ranker's slates."""
    return values(ranker.rank(lists.batch(), k), user, lists)


def values(slates: IntArray, user: ClickModel, lists: ItemLists) -> Doubles:
    facts = user.facts(lists, probability_of(lists))
    return np.concatenate(
        [expected_clicks(user, slate[None], facts.take(slice(q, q + 1))) for q, slate in enumerate(slates)]
    )


@pytest.mark.parametrize("text", USERS)
@pytest.mark.parametrize("k", [2, 5])
def test_exact_slates_are_the_best_of_all(text: str, k: int) -> None:
    """Every slate, each by its sum over everything that can happen; 5 slots are more than there are items."""
    user = click_model(text, eta=0.5)
    lists = small_lists(2, 4, seed=1)
    found = values_of(ShownCeiling(user, k=k), user, lists, k)
    for number, length in enumerate(lists.lengths.tolist()):
        slates = [list(slate) for slate in permutations(range(length), min(k, length))]
        best = max(enumerated_clicks(user, lists, number, slate).sum() for slate in slates)
        assert found[number] == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("text", ["cascade", "diverse", "similar", "position"])
def test_beam_search_comes_close_to_the_best_and_never_above(text: str) -> None:
    check_beam_search(click_model(text), small_lists(40, 6, seed=2), width=720, greedy=0.9, wide=0.998)


@pytest.mark.parametrize("text", [text for text in USERS if text not in ("cascade", "diverse", "similar", "position")])
def test_beam_search_comes_close_for_users_with_more_to_remember(text: str) -> None:
    """The greedy choice loses more where it matters what stands below an item, or who the user is."""
    check_beam_search(click_model(text), small_lists(12, 6, seed=2), width=200, greedy=0.85, wide=0.994)


def check_beam_search(user: ClickModel, lists: ItemLists, *, width: int, greedy: float, wide: float) -> None:
    best = values_of(ShownCeiling(user, exact_slates=720), user, lists, 6)
    first = values_of(ShownCeiling(user, exact_slates=1, beam=1), user, lists, 6)
    found = values_of(ShownCeiling(user, exact_slates=1), user, lists, 6)
    everything = values_of(ShownCeiling(user, exact_slates=1, beam=width), user, lists, 6)
    assert (found <= best + 1e-12).all()
    assert (first <= best + 1e-12).all()
    assert first.mean() > greedy * best.mean()
    assert found.mean() > 0.99 * best.mean()
    assert found.mean() >= first.mean() - 1e-12
    assert everything.mean() > wide * best.mean()  # not 1: of slates with the same items the best so far is kept


def test_the_beam_finds_slates_that_the_greedy_choice_misses() -> None:
    user = click_model("diverse")
    lists = small_lists(30, 25, seed=3)
    greedy, found = (values_of(ShownCeiling(user, beam=beam), user, lists, 10) for beam in (1, 16))
    assert found.mean() > 1.04 * greedy.mean()


def test_two_orders_of_the_same_items_do_not_fill_the_beam() -> None:
    # Item 1 is similar to 2 and 3. After two slots 0 1 leads; were 1 0 kept beside it, 0 2 would be lost, and with it
    # 0 2 3 4, the best: 0.9 + 0.85 + 0.85 + 0.5 clicks.
    features = [[100.0], [10.0], [9.0], [11.0], [200.0]]
    lists = ItemLists(features, [0, 5], relevance_probability=[0.9, 0.9, 0.85, 0.85, 0.5])
    slates = ShownCeiling(click_model("diverse", q=0.1), k=4, beam=2, exact_slates=1).rank(lists.batch())
    assert slates.tolist() == [[0, 2, 3, 4, 1]]


def test_a_single_sampled_state_knows_what_is_certain() -> None:
    lists = ItemLists([[0.0], [1.0], [50.0], [90.0]], [0, 4], relevance_probability=[1.0, 0.9, 0.3, 0.2])
    ceiling = ShownCeiling(click_model("diverse", q=0), k=2, beam=1, states=1, exact_slates=1)
    assert ceiling.rank(lists.batch(), 2).tolist() == [[0, 2]]  # 0 is clicked for sure, and 1 is similar to it


def test_sampled_states_lose_little() -> None:
    user = click_model("diverse")
    lists = small_lists(30, 25, seed=4)
    sampled, enumerated = (values_of(ShownCeiling(user, states=states), user, lists, 10) for states in (32, 1024))
    assert sampled.mean() > 0.99 * enumerated.mean()


@pytest.mark.parametrize("text", USERS)
def test_no_other_order_expects_more_clicks(text: str) -> None:
    user = click_model(text, eta=0.2)
    lists = small_lists(30, 12, seed=5)
    lists = ItemLists.concat([lists, small_lists(30, 5, seed=6)])
    ceiling = ShownCeiling(user, k=5)
    top = values_of(ceiling, user, lists, 5)
    for other in (BaseOrder(), RandomOrder(1), ByProbability(), LoggedCeiling(user, repeats=50)):
        theirs = values_of(other, user, lists, 5)
        assert (theirs[lists.lengths == 5] <= top[lists.lengths == 5] + 1e-12).all()
        assert theirs.mean() <= top.mean() + 1e-12


class ByProbability:
    def rank(self, batch: object, k: int | None = None) -> IntArray:
        return ShownCeiling(click_model("cascade")).rank(batch, k)  # type: ignore[arg-type]


def test_users_who_do_not_look_back_get_the_order_of_probability() -> None:
    lists = ItemLists(np.zeros((4, 1)), [0, 4], relevance_probability=[0.1, 0.9, 0.5, 0.9])
    assert ShownCeiling(click_model("position")).rank(lists.batch()).tolist() == [[1, 3, 2, 0]]


def test_after_the_planned_slots_come_the_others_by_probability() -> None:
    # Items 0 and 1 are similar, so the second slot goes to the less relevant item 2.
    features = [[0.0], [1.0], [50.0], [90.0]]
    lists = ItemLists(features, [0, 4], relevance_probability=[1.0, 0.9, 0.3, 0.2])
    assert ShownCeiling(click_model("diverse", q=0), k=2).rank(lists.batch()).tolist() == [[0, 2, 1, 3]]


def test_the_ceiling_says_what_it_is() -> None:
    assert ShownCeiling(click_model("cascade"), k=5).describe() == "most expected clicks in the top 5: exact"
    two = "most expected clicks in the top 2: exact up to 27 items, a beam search (8) and no bound for longer lists"
    assert ShownCeiling(click_model("similar"), k=2, beam=8).describe() == two  # 27 · 26 = 702 slates


# The ceiling of logged labels


@pytest.mark.parametrize("text", USERS)
def test_logged_clicks_equal_the_sum_over_all_that_can_happen(text: str) -> None:
    user = click_model(text, eta=0.4)
    repeats = 20_000
    lists = small_lists(3, 4, seed=7)
    found = LoggedCeiling(user, repeats=repeats).expected_clicks(lists.batch())
    expected = [enumerated_clicks(user, lists, number, [0, 1, 2, 3]) for number in range(len(lists))]
    exact = user.depends_on != "clicks"
    np.testing.assert_allclose(found, expected, atol=1e-12 if exact else 4 * 0.5 / np.sqrt(repeats))


@pytest.mark.parametrize("text", USERS)
def test_no_other_order_has_a_higher_expected_dcg_of_the_log(text: str) -> None:
    user = click_model(text)
    lists = small_lists(3, 4, seed=8)
    discount = 1 / np.log2(np.arange(4) + 2)
    slates = LoggedCeiling(user, repeats=20_000).rank(lists.batch())
    for number in range(len(lists)):
        rates = enumerated_clicks(user, lists, number, [0, 1, 2, 3])
        best = max((rates[list(order)] * discount).sum() for order in permutations(range(4)))
        assert (rates[slates[number]] * discount).sum() == pytest.approx(best, abs=0.01)


SAVED = {
    "cascade": (
        [
            0.0,
            1.6075535717667329,
            0.33619511127471924,
            0.8805320023564377,
            2.7640033493344287,
            1.9598689158818825,
            2.8101602781604824,
        ],
        [[], [3, 0, 2, 1, 4], [0], [1, 0], [4, 5, 6, 7, 2], [2, 5, 6, 1, 4], [10, 4, 0, 5, 1]],
    ),
    "diverse": (
        [
            0.0,
            1.102408743054102,
            0.33619511127471924,
            0.7393212979322048,
            1.4622877863570736,
            1.345751596375696,
            1.7444829601991625,
        ],
        [[], [3, 2, 1, 0, 4], [0], [1, 0], [5, 6, 4, 7, 2], [2, 6, 4, 5, 1], [4, 0, 1, 10, 5]],
    ),
    "similar": (
        [
            0.0,
            2.2658048902497168,
            0.33619511127471924,
            0.9161548973584183,
            3.3697761406465663,
            2.464235460849372,
            5.072143969832543,
        ],
        [[], [3, 0, 4, 2, 1], [0], [1, 0], [4, 6, 7, 2, 0], [2, 5, 3, 1, 0], [10, 0, 2, 8, 1]],
    ),
    "position": (
        [
            0.0,
            1.7969889182512317,
            0.4025756001472473,
            0.9682646304463138,
            2.976072835415967,
            2.2088243171438684,
            3.2101259188142484,
        ],
        [[], [3, 0, 2, 1, 4], [0], [1, 0], [4, 5, 6, 7, 2], [2, 5, 6, 1, 4], [10, 4, 0, 5, 1]],
    ),
}
"""The expected clicks of each list's log, and the best slates, as the first version of the package had them."""


@pytest.mark.parametrize("name", SAVED)
def test_the_papers_users_have_the_ceilings_that_they_always_had(name: str) -> None:
    lists, user = mixed_lists(12), click_model(name, eta=0.4)
    logged, best = SAVED[name]
    expected = LoggedCeiling(user, repeats=30).expected_clicks(lists.batch())
    np.testing.assert_allclose(expected.sum(axis=1), logged, rtol=1e-14)
    slates = ShownCeiling(user, k=5, exact_slates=100).rank(lists.batch(), 5)
    assert [[item for item in slate if item >= 0] for slate in slates.tolist()] == best


# What they need


@pytest.mark.parametrize("ceiling", [LoggedCeiling(click_model("diverse")), ShownCeiling(click_model("cascade"))])
def test_lists_without_probabilities_are_refused(ceiling: Ranker) -> None:
    with pytest.raises(DataError, match="true relevance probabilities"):
        ceiling.rank(ItemLists(np.zeros((2, 1)), [0, 2]).batch())


def test_bad_options_are_named() -> None:
    user = click_model("diverse")
    with pytest.raises(UsageError, match="repeats must be at least 1, got 0"):
        LoggedCeiling(user, repeats=0)
    with pytest.raises(UsageError, match="beam must be at least 1, got 0"):
        ShownCeiling(user, beam=0)


def test_another_seed_changes_only_what_is_sampled() -> None:
    lists, user = mixed_lists(seed=1), click_model("similar")
    first, second = (LoggedCeiling(user, repeats=3, seed=seed).expected_clicks(lists.batch()) for seed in (0, 1))
    assert (first != second).any()
    few = [ShownCeiling(user, k=7, seed=seed).rank(lists.batch()) for seed in (0, 1)]
    np.testing.assert_array_equal(few[0], few[1])  # 2^6 states before the last slot: all are enumerated
