from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from seq2slate.baselines.ceiling import ShownCeiling
from seq2slate.data.files import read
from seq2slate.data.lists import FloatArray, IntArray, ItemLists, offsets_from_lengths
from seq2slate.data.ranker import slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.options import options_of
from seq2slate.simulation.battery import BATTERY
from seq2slate.simulation.click_models import (
    CLICK_MODELS,
    CascadeModel,
    ClickModel,
    ContrastModel,
    DiverseClicks,
    FatigueModel,
    IntentModel,
    PositionBasedModel,
    SimilarClicks,
    StoppingModel,
    check_grades,
    click_model,
    shown_clicks,
    simulate_clicks,
)
from seq2slate.simulation.clicks import bounded_batches
from seq2slate.simulation.mixture import Mixture
from seq2slate.simulation.similarity import Distance, item_groups, similar_items
from seq2slate.simulation.visits import Arrays, DependsOn, Draws, Facts, draw, scan
from tests.checks import mixed_lists
from tests.reference_clicks import Visit, drawn_type, groups_of, reference_users

USERS = [
    *CLICK_MODELS,
    "diverse:q=0.1,distance=normalised",
    "similar:distance=cosine",
    "intent:intents=2,most_clicks=1",
    "2 diverse + similar:q=0.2",
    "diverse + intent",
    "contrast + 0.5 stopping + intent:intents=3 + fatigue",
]
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def labels_of(lists: ItemLists) -> FloatArray:
    assert lists.labels is not None
    return lists.labels


def grades_of(lists: ItemLists) -> FloatArray:
    return labels_of(lists) if lists.relevance is None else lists.relevance


def random_slates(lists: ItemLists, seed: int, k: int | None = None) -> IntArray:
    mask = lists.batch().mask
    return slates_from_scores(np.random.default_rng(seed).random(mask.shape), mask, k)


def binary_facts(user: ClickModel, lists: ItemLists) -> Facts:
    relevance = (lists.batch().pad(grades_of(lists)) >= user.relevant_from).astype(np.float64)
    return user.facts(lists, relevance)


def reference(user: ClickModel, lists: ItemLists, slates: IntArray, draws: Draws) -> npt.NDArray[np.bool_]:
    """The clicks (Q, K) of the slow loop, under the same draws (Q, K)."""
    grades = grades_of(lists)
    clicks = np.zeros(slates.shape, dtype=bool)
    for number, slate in enumerate(slates):
        items = slice(lists.offsets[number], lists.offsets[number + 1])
        rows = lists.features[items].tolist()
        visit = 0.0 if draws.visit is None else float(draws.visit[number])
        one, intent = drawn_type(reference_users(user), rows, visit)
        relevant = (grades[items] >= user.relevant_from).tolist()
        clicks[number] = Visit(one.model, rows, relevant, slate.tolist(), intent, **one.options).clicks(
            draws.examine[number].tolist(), draws.click[number].tolist()
        )
    return clicks


def assert_equals_reference(user: ClickModel, lists: ItemLists, seed: int) -> None:
    """The clicks on new slates, and those on the base order, are the slow loop's, one by one."""
    slates = random_slates(lists, seed)
    rng = np.random.default_rng(seed)
    draws = Draws(rng.random(slates.shape), rng.random(slates.shape), rng.random(len(slates)))
    batch = lists.batch()
    clicks = scan(user, slates, binary_facts(user, lists), draws).clicks
    np.testing.assert_array_equal(clicks, reference(user, lists, slates, draws))

    drawn = draw([(seed, number) for number in range(len(lists))], batch.n_slots, 1, user.n_types)
    first = Draws(drawn.examine[0], drawn.click[0], None if drawn.visit is None else drawn.visit[0])
    base_order = slates_from_scores(np.zeros(batch.mask.shape), batch.mask)
    expected = reference(user, lists, base_order, first)
    np.testing.assert_array_equal(labels_of(simulate_clicks(user, lists, seed)), expected[batch.mask])


# Against the slow, obvious loop


@pytest.mark.parametrize("text", [*CLICK_MODELS, "diverse:q=0.1,distance=normalised", "similar:distance=cosine"])
@pytest.mark.parametrize("file", ["mslr_sample.txt.gz", "mq2008.fold1.txt.gz", "cs276.txt.gz"])
def test_real_lists_get_the_clicks_of_the_obvious_loop(text: str, file: str) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"{DATA / file} is not there")
    lists = real_lists(file)
    if text not in CLICK_MODELS or text == "intent":
        lists = lists[::12]  # normalised columns and k-means are slow in plain Python
    model = click_model(text, relevant_from=1 if file.startswith("mq2008") else 2)
    assert_equals_reference(model, lists, seed=0)


@cache
def real_lists(file: str) -> ItemLists:
    """Lists of up to 150 items, of every length, that the slow loop manages in a second."""
    lists = read(DATA / file)
    lists = lists[lists.lengths <= 150]
    by_length = np.argsort(lists.lengths, kind="stable")
    return lists[by_length[:: max(1, len(lists) // 40)]]


@st.composite
def lists_with_ties(draw_value: st.DrawFn) -> ItemLists:
    """A few lists on a small grid: whole numbers, so that equal distances are equal to the last bit."""
    lengths = draw_value(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    n_features = draw_value(st.integers(1, 3))
    cells = st.integers(-3, 3)
    rows = [[draw_value(cells) for _ in range(n_features)] for _ in range(sum(lengths))]
    grades = [draw_value(st.integers(0, 4)) for _ in rows]
    features = np.array(rows, dtype=np.float64).reshape(len(rows), n_features)
    return ItemLists(features, offsets_from_lengths(np.array(lengths)), labels=grades)


VALUES = {
    "eta": st.sampled_from([0.0, 0.3, 1.0]),
    "q": st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]),
    "distance": st.sampled_from(["euclidean", "normalised", "cosine"]),
    "intents": st.integers(1, 5),
    "most_clicks": st.integers(1, 4),
    "relevant_from": st.just(2.0),
}
"""Of each option; all others are shares."""


@st.composite
def users(draw_value: st.DrawFn) -> ClickModel:
    name = draw_value(st.sampled_from(list(CLICK_MODELS)))
    share = st.sampled_from([0.0, 0.2, 0.7, 1.0])
    options = {one.name: draw_value(VALUES.get(one.name, share)) for one in options_of(CLICK_MODELS[name])}
    return click_model(name, **options)


@settings(max_examples=60)
@given(
    lists=lists_with_ties(),
    users=st.lists(users(), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
)
def test_lists_with_ties_get_the_clicks_of_the_obvious_loop(
    lists: ItemLists, users: list[ClickModel], seed: int
) -> None:
    """Any user with any options, and any mixture of up to three."""
    weights = tuple(range(1, len(users) + 1))
    assert_equals_reference(users[0] if len(users) == 1 else Mixture(tuple(users), weights), lists, seed)


@pytest.mark.parametrize("text", USERS)
def test_the_mixed_batch_gets_the_clicks_of_the_obvious_loop(text: str) -> None:
    assert_equals_reference(click_model(text, eta=0.5), mixed_lists(3), seed=3)


# Similarity


def test_duplicates_are_similar_and_the_median_itself_counts() -> None:
    lists = ItemLists(features=[[0, 0], [0, 0], [3, 4]], offsets=[0, 3])
    assert similar_items(lists, 0.0)[0].tolist() == [[False, True, False], [True, False, False], [False, False, False]]
    everything = ~np.eye(3, dtype=bool)
    np.testing.assert_array_equal(similar_items(lists, 0.5)[0], everything)  # distances 0 5 5: the median is 5


def test_similarity_is_on_raw_features_even_when_they_are_huge() -> None:
    # Through inner products in float64 these squared distances, 1 and 4, would drown in squares of 1e16.
    lists = ItemLists(features=[[1e8, 0], [1e8, 1], [1e8, 3]], offsets=[0, 3])
    assert similar_items(lists, 0.5)[0].tolist() == [[False, True, False], [True, False, True], [False, True, False]]


@pytest.mark.parametrize("q", [0.0, 0.3, 0.5, 0.7, 1.0])  # 0.7 · 90 pairs is 62.999…, and rounding decides
@pytest.mark.parametrize("kind", ["plain", "duplicates", "outlier", "equal distances", "all the same"])
def test_similarity_equals_the_quantile_of_the_distances(kind: str, q: float) -> None:
    """Also where inner products could not tell: distances that are equal, or tiny beside the features."""
    features = np.random.default_rng(0).normal(size=(6, 14, 5)).astype(np.float32)
    if kind == "duplicates":
        features[:, 7:] = features[:, :7]
    elif kind == "outlier":
        features[:, 3] *= 1e9
    elif kind == "equal distances":
        features = np.broadcast_to(np.eye(14, dtype=np.float32), (6, 14, 14))
    elif kind == "all the same":
        features = np.ones((6, 14, 5), dtype=np.float32)
    lists = ItemLists(features.reshape(6 * 14, -1), np.arange(7) * 14)
    for similar, rows in zip(similar_items(lists, q), features.astype(np.float64), strict=True):
        distances = pdist(rows)
        np.testing.assert_array_equal(similar, squareform(distances <= np.quantile(distances, q)))


def test_a_missing_feature_has_no_distance_and_is_named() -> None:
    lists = ItemLists(np.array([[1, 2], [1, np.nan], [3, 4]]), [0, 1, 3], labels=[1, 1, 1], list_ids=["a", "b"])
    with pytest.raises(DataError, match="list 'b', item 0: feature 'f2' is missing, and this user compares items"):
        simulate_clicks(click_model("diverse"), lists, seed=0)
    assert simulate_clicks(click_model("cascade"), lists, seed=0).n_items == 3


def test_padding_and_lists_without_pairs_have_no_similar_items() -> None:
    lists = ItemLists(features=np.zeros((4, 2)), offsets=[0, 0, 1, 4])
    similar = similar_items(lists, 1.0)
    assert similar.shape == (3, 3, 3)
    assert not similar[:2].any()
    assert similar[2].sum() == 6


def test_batches_hold_every_list_once_within_the_limit() -> None:
    lengths = np.array([2000, 3, 0, 2500, 1, 40] + [30] * 9000)
    lists = ItemLists(np.zeros((lengths.sum(), 1)), offsets_from_lengths(lengths))
    batches = list(bounded_batches(lists, repeats=100))
    assert sorted(np.concatenate([batch.index for batch in batches]).tolist()) == list(range(len(lists)))
    cells = [len(batch) * batch.n_slots * max(batch.n_slots, 100) for batch in batches]
    assert all(count <= 1 << 20 or len(batch) == 1 for count, batch in zip(cells, batches, strict=True))
    assert len(batches) < 50


# Normalised distances and groups


@pytest.mark.parametrize("distance", ["normalised", "cosine"])
@pytest.mark.parametrize("q", [0.0, 0.1, 0.5])
def test_normalised_similarity_equals_the_quantile_of_the_distances(distance: Distance, q: float) -> None:
    """Heavy-tailed columns, a constant one, and duplicates; scipy measures what NumPy standardises column by column."""
    features = np.random.default_rng(0).normal(size=(6, 14, 5)).astype(np.float32)
    features[..., 1] = np.exp(5 * features[..., 1])
    features[..., 2] = 7
    features[:, 10:] = features[:, :4]
    lists = ItemLists(features.reshape(6 * 14, -1), np.arange(7) * 14)
    logs = np.sign(features) * np.log1p(np.abs(features.astype(np.float64)))[..., [0, 1, 3, 4]][..., [0, 1, 1, 2, 3]]
    logs = np.delete(logs, 2, axis=2)
    standard = (logs - logs.mean(axis=1, keepdims=True)) / logs.std(axis=1, keepdims=True)
    for similar, rows in zip(similar_items(lists, q, distance), standard, strict=True):
        distances = pdist(rows, "cosine" if distance == "cosine" else "euclidean")
        np.testing.assert_array_equal(similar, squareform(distances <= np.quantile(distances, q) + 1e-9))


def test_groups_are_those_of_the_obvious_loop() -> None:
    lists = mixed_lists(4, longest=40)
    for number, groups in enumerate(item_groups(lists, 3)):
        rows = lists.features[lists.offsets[number] : lists.offsets[number + 1]]
        assert groups[: len(rows)].tolist() == groups_of(rows.tolist(), 3)
        assert (groups[len(rows) :] == -1).all()


def test_groups_find_clusters_and_do_not_depend_on_the_order_of_the_list() -> None:
    rng = np.random.default_rng(1)
    cluster = rng.permutation(np.repeat(np.arange(3), 8))
    features = rng.normal(size=(3, 6))[cluster] * 5 + rng.normal(size=(24, 6)) * 0.1
    groups = item_groups(ItemLists(features, [0, 24]), 3)[0]
    assert len(set(zip(groups.tolist(), cluster.tolist(), strict=True))) == 3
    order = rng.permutation(24)
    np.testing.assert_array_equal(item_groups(ItemLists(features[order], [0, 24]), 3)[0], groups[order])


# Click rates, by hand


def rates(
    model: ClickModel, features: list[list[float]], labels: list[float], slate: list[int]
) -> npt.NDArray[np.float64]:
    """The share of 40,000 scans in which each slot was clicked."""
    lists = ItemLists(features=features, offsets=[0, len(features)], labels=labels)
    slates = np.array([slate])
    draws = draw([(7,)], len(slate), 40_000, model.n_types)
    shares: npt.NDArray[np.float64] = scan(model, slates, binary_facts(model, lists), draws).clicks.mean(axis=0)[0]
    return shares


TWO_AND_ONE = [[0.0], [1.0], [9.0]]  # with q = 0 only the first two are similar
MONTE_CARLO = 4 * 0.5 / 200  # four standard errors of a share of 40,000


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_cascade_rates(eta: float) -> None:
    found = rates(CascadeModel(eta=eta), TWO_AND_ONE, [4, 1, 2], [2, 1, 0])
    np.testing.assert_allclose(found, [1, 0, 1 / 3**eta], atol=MONTE_CARLO)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_diverse_rates(eta: float) -> None:
    found = rates(DiverseClicks(eta=eta, q=0), TWO_AND_ONE, [3, 3, 3], [2, 0, 1])
    first = 1 / 2**eta  # of the two similar items
    np.testing.assert_allclose(found, [1, first, (1 - first) / 3**eta], atol=MONTE_CARLO)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_similar_rates(eta: float) -> None:
    found = rates(SimilarClicks(eta=eta, q=0), TWO_AND_ONE, [3, 0, 0], [2, 0, 1])
    first = 1 / 2**eta
    np.testing.assert_allclose(found, [0, first, first / 3**eta], atol=MONTE_CARLO)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_position_rates(eta: float) -> None:
    found = rates(PositionBasedModel(eta=eta, noise=0.2), TWO_AND_ONE, [0, 3, 1], [2, 1, 0])
    np.testing.assert_allclose(found, [0.2, 1 / 2**eta, 0.2 / 3**eta], atol=MONTE_CARLO)


def test_intent_rates() -> None:
    two_clusters = [[0.0], [0.1], [9.0], [9.1], [9.2]]
    found = rates(IntentModel(intents=2, most_clicks=2), two_clusters, [3, 3, 3, 3, 3], [4, 0, 3, 1, 2])
    np.testing.assert_allclose(found, [0.6, 0.4, 0.6, 0.4, 0], atol=MONTE_CARLO)  # nobody clicks a third time


def test_contrast_rates() -> None:
    user = ContrastModel(eta=0, strength=0.4)
    found = rates(user, [[0.0]] * 5, [3, 3, 3, 0, 3], [0, 1, 2, 3, 4])
    np.testing.assert_allclose(found, [0.6, 0.6**2, 0.6, 0, 1], atol=MONTE_CARLO)


def test_fatigue_rates() -> None:
    found = rates(FatigueModel(eta=0, factor=0.3), [[0.0]] * 3, [3, 3, 3], [0, 1, 2])
    np.testing.assert_allclose(found, [1, 0.3, 0.3 * 0.3**2 + 0.7 * 0.3], atol=MONTE_CARLO)


def test_stopping_rates() -> None:
    user = StoppingModel(eta=0, noise=0.5, satisfaction=0.8, disappointment=0.4)
    found = rates(user, [[0.0]] * 3, [3, 0, 3], [0, 1, 2])
    np.testing.assert_allclose(found, [1, 0.2 * 0.5, 0.2 * (1 - 0.5 * 0.4)], atol=MONTE_CARLO)


def test_mixture_rates() -> None:
    user = Mixture((CascadeModel(eta=1), DiverseClicks(q=0)), weights=(1, 3))
    found = rates(user, TWO_AND_ONE, [3, 3, 3], [0, 1, 2])
    np.testing.assert_allclose(found, [1, 0.25 / 2, 0.25 / 3 + 0.75], atol=MONTE_CARLO)


def test_an_irrelevant_click_by_similarity_draws_others_after_it() -> None:
    lists = ItemLists(features=[[0.0], [1.0], [2.0], [9.0]], offsets=[0, 4], labels=[2, 0, 0, 0])
    model = SimilarClicks(eta=0, q=0.2)  # distances 1 1 2 7 8 9, threshold 1: a chain
    assert labels_of(simulate_clicks(model, lists, seed=0)).tolist() == [1, 1, 1, 0]


# Shown slates


@pytest.mark.parametrize("text", USERS)
def test_shown_clicks_are_the_mean_over_scans(text: str) -> None:
    lists = mixed_lists(5)
    model = click_model(text, eta=0.4)
    slates = random_slates(lists, seed=1)
    mean = shown_clicks(model, lists, slates, repeats=3000, seed=2)
    draws = draw([(99, number) for number in range(len(lists))], slates.shape[1], 3000, model.n_types)
    observed = scan(model, slates, binary_facts(model, lists), draws).clicks.mean(axis=0)
    np.testing.assert_allclose(mean, observed, atol=5 * 0.5 / np.sqrt(3000))
    assert (mean[slates < 0] == 0).all()


def test_shown_clicks_are_exact_for_a_model_that_is_not_stochastic() -> None:
    lists = mixed_lists(6)
    model = DiverseClicks()
    slates = random_slates(lists, seed=1, k=4)
    assert not model.is_stochastic
    once = shown_clicks(model, lists, slates, repeats=1, seed=1)
    np.testing.assert_array_equal(once, shown_clicks(model, lists, slates, repeats=50, seed=2))
    no_draws = Draws(np.zeros(slates.shape), np.zeros(slates.shape))
    np.testing.assert_array_equal(once, reference(model, lists, slates, no_draws))


def test_the_first_slots_keep_their_random_numbers_when_more_are_shown() -> None:
    lists, model = mixed_lists(7), SimilarClicks(eta=0.8)
    slates = random_slates(lists, seed=1)
    whole = shown_clicks(model, lists, slates, repeats=5, seed=3)
    np.testing.assert_array_equal(shown_clicks(model, lists, slates[:, :3], repeats=5, seed=3), whole[:, :3])


@pytest.mark.parametrize("text", USERS)
def test_batching_changes_no_click(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lists, model = mixed_lists(8), click_model(text, eta=0.5)
    slates = random_slates(lists, seed=1)
    log = labels_of(simulate_clicks(model, lists, 4))
    shown = shown_clicks(model, lists, slates, repeats=7, seed=4)
    monkeypatch.setattr("seq2slate.simulation.clicks._CELLS", 1)
    np.testing.assert_array_equal(labels_of(simulate_clicks(model, lists, 4)), log)
    np.testing.assert_array_equal(shown_clicks(model, lists, slates, repeats=7, seed=4), shown)


SAVED = {
    "cascade": (
        "000000010010100101000001010100000100",
        [1.0, 0.757858283255199, 0.6443940149772542, 1.7230475324955523, 1.0506111217615068, 0.4883593419305869],
    ),
    "diverse": (
        "000000010010000001000001000100000000",
        [1.0, 0.757858283255199, 0.6443940149772542, 0.689219012998221, 0.7354277852330549, 0.09767186838611738],
    ),
    "similar": (
        "000000010011101101100001010110100110",
        [1.0, 0.757858283255199, 1.2887880299545085, 1.7230475324955523, 1.5759166826422604, 1.074390552247291],
    ),
    "position": (
        "000000010010100101000001011100000110",
        [1.5, 1.0610015965572788, 0.8377122194704305, 1.7804824502454042, 1.1556722339376575, 0.5860312103167042],
    ),
}
"""The log of each user, and the clicks at each slot when shown again, as the first version of the package had them."""


@pytest.mark.parametrize("name", SAVED)
def test_the_papers_users_click_as_they_always_did(name: str) -> None:
    lists, user = mixed_lists(12), click_model(name, eta=0.4)
    log, shown = SAVED[name]
    assert "".join(str(int(label)) for label in labels_of(simulate_clicks(user, lists, seed=7))) == log
    clicks = shown_clicks(user, lists, random_slates(lists, seed=5, k=6), repeats=5, seed=7)
    np.testing.assert_allclose(clicks.sum(axis=0), shown, rtol=1e-14)


def test_another_seed_is_another_log() -> None:
    lists, model = mixed_lists(9), PositionBasedModel()
    once, again, other = (labels_of(simulate_clicks(model, lists, seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(once, again)
    assert (once != other).any()


@pytest.mark.parametrize(
    ("model", "is_stochastic"),
    [
        (CascadeModel(), True),
        (CascadeModel(eta=0), False),
        (DiverseClicks(), False),
        (SimilarClicks(), True),
        (PositionBasedModel(eta=0), True),
        (PositionBasedModel(eta=0, noise=0), False),
        (IntentModel(), True),
        (IntentModel(intents=1), False),
        (ContrastModel(eta=0), True),
        (ContrastModel(eta=0, strength=1), False),
        (FatigueModel(eta=0), True),
        (FatigueModel(eta=0, factor=1), False),
        (StoppingModel(eta=0), True),
        (StoppingModel(eta=0, noise=0), True),
        (StoppingModel(eta=0, noise=0, satisfaction=1), False),
        (Mixture((DiverseClicks(), CascadeModel(eta=0))), True),
    ],
)
def test_a_click_model_is_stochastic_when_two_logs_can_differ(model: ClickModel, is_stochastic: bool) -> None:
    lists = mixed_lists(10)
    logs = {tuple(labels_of(simulate_clicks(model, lists, seed)).tolist()) for seed in range(5)}
    assert model.is_stochastic == is_stochastic == (len(logs) > 1)


# The log


def test_a_log_keeps_the_grades_and_can_be_labelled_again() -> None:
    lists = ItemLists(features=[[0.0], [5.0], [9.0]], offsets=[0, 3], labels=[0, 3, 1])
    log = simulate_clicks(CascadeModel(eta=0), lists, seed=0)
    assert labels_of(log).tolist() == [0, 1, 0]
    assert grades_of(log).tolist() == [0, 3, 1]
    again = simulate_clicks(CascadeModel(eta=0, relevant_from=1), log, seed=0)
    assert labels_of(again).tolist() == [0, 1, 1]
    assert labels_of(lists).tolist() == [0, 3, 1]


def test_lists_without_grades_are_refused() -> None:
    with pytest.raises(DataError, match="neither relevance nor labels"):
        simulate_clicks(CascadeModel(), ItemLists(np.zeros((2, 1)), [0, 2]), seed=0)


def test_no_lists_have_no_clicks() -> None:
    lists = ItemLists(np.zeros((0, 2)), [0], labels=[])
    assert len(simulate_clicks(DiverseClicks(), lists, seed=0)) == 0
    assert shown_clicks(DiverseClicks(), lists, np.zeros((0, 0), dtype=np.int64), repeats=1, seed=0).shape == (0, 0)


# Click models by name


def test_the_defaults_are_the_papers() -> None:
    assert click_model("diverse") == DiverseClicks(eta=0.0, q=0.5, relevant_from=2)
    assert click_model("similar") == SimilarClicks(eta=0.3, q=0.5, relevant_from=2)
    assert click_model("similar", eta=0.1, relevant_from=1) == SimilarClicks(eta=0.1, q=0.5, relevant_from=1)
    assert click_model("position", noise=0.3) == PositionBasedModel(noise=0.3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cascading", {}, "no click model 'cascading'; choose one of cascade, diverse, similar, position, intent"),
        ("cascade", {"q": 0.5}, "'cascade' has no option 'q'"),
        ("diverse", {"noise": 0.5}, "'diverse' has no option 'noise'"),
        ("diverse", {"eta": -0.1}, "eta must be at least 0, got -0.1"),
        ("similar", {"q": 1.5}, "q must be between 0 and 1, got 1.5"),
        ("similar", {"q": float("nan")}, "q must be between 0 and 1, got nan"),
        ("position", {"noise": -1}, "noise must be between 0 and 1"),
        ("intent", {"intents": 0}, "intents must be at least 1, got 0"),
        ("intent", {"intents": 2.5}, "intents must be a whole number, got 2.5"),
        ("diverse", {"distance": "manhattan"}, "there is no distance 'manhattan'; choose one of euclidean, normalised"),
        ("diverse:q", {}, "cannot read the option 'q' of a click model: write OPTION=VALUE"),
        ("diverse:q=half", {}, "q must be a number, got 'half'"),
        ("diverse +", {}, "cannot read the click model 'diverse \\+'"),
        ("diverse + cascade", {"q": 0.1}, "'cascade' has no option 'q'"),
        ("diverse + 0 cascade", {}, "the weights of a mixture must be above 0"),
        ("diverse:relevant_from=1 + cascade", {}, "must agree on the lowest relevant grade"),
    ],
)
def test_bad_requests_are_named(name: str, options: dict[str, float | str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        click_model(name, **options)


def test_options_and_mixtures_are_read_from_a_text() -> None:
    assert click_model("diverse:q=0.1, distance=cosine") == DiverseClicks(q=0.1, distance="cosine")
    assert click_model("intent:intents=3") == IntentModel(intents=3)
    assert click_model("diverse:q=0.1", q=None, eta=0.2) == DiverseClicks(q=0.1, eta=0.2)
    mixed = Mixture((DiverseClicks(eta=0.5), SimilarClicks(q=0.2, eta=0.5)), (0.5, 1))
    assert click_model("0.5 diverse + similar:q=0.2", eta=0.5) == mixed


@pytest.mark.parametrize("text", BATTERY.values())
def test_every_user_of_the_battery_labels_a_log(text: str) -> None:
    log = simulate_clicks(click_model(text), mixed_lists(14), seed=0)
    assert 0 < labels_of(log).sum() < log.n_items


@dataclass(frozen=True)
class Shy(ClickModel):
    """A toy: clicks any examined item, but nothing directly below a click. The state: a click directly above."""

    appeal: float = 1.0
    eta: float = 0.0
    relevant_from: float = 2.0

    @property
    def depends_on(self) -> DependsOn:
        return "clicks"

    def start(self, kind: IntArray) -> Arrays:
        return (np.zeros(kind.shape, dtype=bool),)

    def click_probability(self, candidates: Facts, state: Arrays) -> npt.NDArray[np.float64]:
        return np.where(state[0], 0.0, np.full(candidates.relevance.shape, self.appeal))

    def after(self, item: Facts, state: Arrays, clicked: npt.NDArray[np.bool_]) -> Arrays:
        return (clicked,)


def test_a_new_click_model_needs_a_class_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLICK_MODELS, "shy", Shy)
    lists = mixed_lists(11)
    model = click_model("shy", eta=1.0)
    slates = random_slates(lists, seed=0, k=3)
    shown = shown_clicks(model, lists, slates, repeats=20_000, seed=0)
    expected = np.array([1.0, 0.0, 1 / 3])  # the second slot is below a click, the third is not
    np.testing.assert_allclose(shown, np.where(slates < 0, 0, expected), atol=MONTE_CARLO)
    assert labels_of(simulate_clicks(click_model("shy + cascade"), lists, seed=0)).any()
    assert ShownCeiling(model).rank(lists.batch(), 3).shape == (len(lists), 3)
    with pytest.raises(UsageError, match="'shy' has no option 'q'; it has appeal, eta, relevant_from"):
        click_model("shy", q=0.5)


def test_slates_must_fit_the_lists_and_repeats_be_positive() -> None:
    lists = ItemLists(np.zeros((2, 1)), [0, 2], labels=[0, 2])
    with pytest.raises(UsageError, match="2 slates for 1 lists"):
        shown_clicks(CascadeModel(), lists, np.zeros((2, 1), dtype=np.int64), repeats=1, seed=0)
    with pytest.raises(UsageError, match="repeats must be at least 1"):
        shown_clicks(CascadeModel(), lists, np.zeros((1, 1), dtype=np.int64), repeats=0, seed=0)


@pytest.mark.parametrize("text", USERS)
def test_a_probability_of_relevance_gives_the_mean_over_relevances(text: str) -> None:
    """Sum the click rates of all 2^3 relevances, weighted, against scans that know the probability only."""
    model = click_model(text, eta=0.3)
    p = np.array([0.9, 0.4, 0.6])
    lists = ItemLists(features=TWO_AND_ONE, offsets=[0, 3])
    slates = np.array([[1, 0, 2]])
    draws = draw([(1,)], 3, 40_000, model.n_types)
    expected = np.zeros(3)
    for outcome in product([0.0, 1.0], repeat=3):
        weight = np.where(np.array(outcome) == 1, p, 1 - p).prod()
        facts = model.facts(lists, np.array([outcome]))
        expected += weight * scan(model, slates, facts, draws).probability.mean(axis=0)[0]
    scanned = scan(model, slates, model.facts(lists, p[None]), draws)
    np.testing.assert_allclose(scanned.probability.mean(axis=0)[0], expected, atol=MONTE_CARLO)
    np.testing.assert_allclose(scanned.clicks.mean(axis=0)[0], expected, atol=MONTE_CARLO)


def test_clicks_are_not_taken_for_grades() -> None:
    lists = ItemLists([[0.0], [1.0]], [0, 2], labels=[0, 1])
    with pytest.raises(UsageError, match="relevant_from=1"):
        check_grades(DiverseClicks(), lists)
    check_grades(DiverseClicks(relevant_from=1), lists)
    check_grades(DiverseClicks(), ItemLists([[0.0], [1.0]], [0, 2], labels=[0, 2]))
