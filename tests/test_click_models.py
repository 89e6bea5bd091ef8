from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from seq2slate.data.files import read
from seq2slate.data.lists import FloatArray, IntArray, ItemLists, offsets_from_lengths
from seq2slate.data.ranker import slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.simulation.click_models import (
    CLICK_MODELS,
    CascadeModel,
    ClickModel,
    DiverseClicks,
    Draws,
    PositionBasedModel,
    SimilarClicks,
    bounded_batches,
    check_grades,
    click_model,
    draw,
    scan,
    shown_clicks,
    similar_items,
    simulate_clicks,
)
from tests import reference_clicks
from tests.checks import mixed_lists

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def labels_of(lists: ItemLists) -> FloatArray:
    assert lists.labels is not None
    return lists.labels


def grades_of(lists: ItemLists) -> FloatArray:
    return labels_of(lists) if lists.relevance is None else lists.relevance


def random_slates(lists: ItemLists, seed: int, k: int | None = None) -> IntArray:
    mask = lists.batch().mask
    return slates_from_scores(np.random.default_rng(seed).random(mask.shape), mask, k)


def reference(name: str, model: ClickModel, lists: ItemLists, slates: IntArray, draws: Draws) -> npt.NDArray[np.bool_]:
    """The clicks (Q, K) of the slow loop, under the same draws (Q, K)."""
    grades = grades_of(lists)
    options = {option: value for option, value in vars(model).items() if option != "relevant_from"}
    clicks = np.zeros(slates.shape, dtype=bool)
    for number, slate in enumerate(slates):
        items = slice(lists.offsets[number], lists.offsets[number + 1])
        clicks[number] = reference_clicks.clicks(
            name,
            lists.features[items].tolist(),
            (grades[items] >= model.relevant_from).tolist(),
            slate.tolist(),
            examine=draws.examine[number].tolist(),
            click=draws.click[number].tolist(),
            **options,
        )
    return clicks


def assert_equals_reference(name: str, model: ClickModel, lists: ItemLists, seed: int) -> None:
    """The clicks on new slates, and those on the base order, are the slow loop's, one by one."""
    slates = random_slates(lists, seed)
    rng = np.random.default_rng(seed)
    draws = Draws(rng.random(slates.shape), rng.random(slates.shape))
    batch = lists.batch()
    relevance = (batch.pad(grades_of(lists)) >= model.relevant_from).astype(np.float64)
    similar = None if model.q is None else similar_items(lists, model.q)
    clicks = scan(model, slates, relevance, similar, draws).clicks
    np.testing.assert_array_equal(clicks, reference(name, model, lists, slates, draws))

    drawn = draw([(seed, number) for number in range(len(lists))], batch.n_slots, 1)
    base_order = slates_from_scores(np.zeros(batch.mask.shape), batch.mask)
    expected = reference(name, model, lists, base_order, Draws(drawn.examine[0], drawn.click[0]))
    np.testing.assert_array_equal(labels_of(simulate_clicks(model, lists, seed)), expected[batch.mask])


# Against the slow, obvious loop


@pytest.mark.parametrize("name", CLICK_MODELS)
@pytest.mark.parametrize("file", ["mslr_sample.txt.gz", "mq2008.fold1.txt.gz", "cs276.txt.gz"])
def test_real_lists_get_the_clicks_of_the_obvious_loop(name: str, file: str) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"{DATA / file} is not there")
    lists = real_lists(file)
    model = click_model(name, relevant_from=1 if file.startswith("mq2008") else 2)
    assert_equals_reference(name, model, lists, seed=0)


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


@settings(max_examples=60)
@given(
    lists=lists_with_ties(),
    name=st.sampled_from(list(CLICK_MODELS)),
    eta=st.sampled_from([0.0, 0.3, 1.0]),
    q=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_lists_with_ties_get_the_clicks_of_the_obvious_loop(
    lists: ItemLists, name: str, eta: float, q: float, seed: int
) -> None:
    model = click_model(name, eta=eta, q=q if name in ("diverse", "similar") else None)
    assert_equals_reference(name, model, lists, seed)


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_the_mixed_batch_gets_the_clicks_of_the_obvious_loop(name: str) -> None:
    assert_equals_reference(name, click_model(name, eta=0.5), mixed_lists(3), seed=3)


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


# Click rates, by hand


def rates(
    model: ClickModel, features: list[list[float]], labels: list[float], slate: list[int]
) -> npt.NDArray[np.float64]:
    """The share of 40,000 scans in which each slot was clicked."""
    lists = ItemLists(features=features, offsets=[0, len(features)], labels=labels)
    slates = np.array([slate])
    relevance = (lists.batch().labels >= model.relevant_from).astype(np.float64)
    similar = None if model.q is None else similar_items(lists, model.q)
    draws = draw([(7,)], len(slate), 40_000)
    shares: npt.NDArray[np.float64] = scan(model, slates, relevance, similar, draws).clicks.mean(axis=0)[0]
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


def test_an_irrelevant_click_by_similarity_draws_others_after_it() -> None:
    lists = ItemLists(features=[[0.0], [1.0], [2.0], [9.0]], offsets=[0, 4], labels=[2, 0, 0, 0])
    model = SimilarClicks(eta=0, q=0.2)  # distances 1 1 2 7 8 9, threshold 1: a chain
    assert labels_of(simulate_clicks(model, lists, seed=0)).tolist() == [1, 1, 1, 0]


# Shown slates


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_shown_clicks_are_the_mean_over_scans(name: str) -> None:
    lists = mixed_lists(5)
    model = click_model(name, eta=0.4)
    slates = random_slates(lists, seed=1)
    mean = shown_clicks(model, lists, slates, repeats=3000, seed=2)
    relevance = (lists.batch().pad(grades_of(lists)) >= 2).astype(np.float64)
    similar = None if model.q is None else similar_items(lists, model.q)
    draws = draw([(99, number) for number in range(len(lists))], slates.shape[1], 3000)
    observed = scan(model, slates, relevance, similar, draws).clicks.mean(axis=0)
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
    np.testing.assert_array_equal(once, reference("diverse", model, lists, slates, no_draws))


def test_the_first_slots_keep_their_random_numbers_when_more_are_shown() -> None:
    lists, model = mixed_lists(7), SimilarClicks(eta=0.8)
    slates = random_slates(lists, seed=1)
    whole = shown_clicks(model, lists, slates, repeats=5, seed=3)
    np.testing.assert_array_equal(shown_clicks(model, lists, slates[:, :3], repeats=5, seed=3), whole[:, :3])


@pytest.mark.parametrize("name", CLICK_MODELS)
def test_batching_changes_no_click(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lists, model = mixed_lists(8), click_model(name, eta=0.5)
    slates = random_slates(lists, seed=1)
    log = labels_of(simulate_clicks(model, lists, 4))
    shown = shown_clicks(model, lists, slates, repeats=7, seed=4)
    monkeypatch.setattr("seq2slate.simulation.click_models._CELLS", 1)
    np.testing.assert_array_equal(labels_of(simulate_clicks(model, lists, 4)), log)
    np.testing.assert_array_equal(shown_clicks(model, lists, slates, repeats=7, seed=4), shown)


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
        ("cascading", {}, "no click model 'cascading'; choose one of cascade, diverse, similar, position"),
        ("cascade", {"q": 0.5}, "'cascade' has no option 'q'"),
        ("diverse", {"noise": 0.5}, "'diverse' has no option 'noise'"),
        ("diverse", {"eta": -0.1}, "eta must be at least 0, got -0.1"),
        ("similar", {"q": 1.5}, "q must be between 0 and 1, got 1.5"),
        ("similar", {"q": float("nan")}, "q must be between 0 and 1, got nan"),
        ("position", {"noise": -1}, "noise must be between 0 and 1"),
    ],
)
def test_bad_requests_are_named(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        click_model(name, **options)


@dataclass(frozen=True)
class GradeBlind:
    """A click model that inherits from nothing: clicks any examined item with one probability."""

    appeal: float = 1.0
    eta: float = 0.0
    relevant_from: float = 2.0
    q: ClassVar[None] = None

    @property
    def is_stochastic(self) -> bool:
        return True

    def click_probability(
        self, relevance: npt.NDArray[np.float64], near_clicked: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        return np.full(relevance.shape, self.appeal)


def test_a_new_click_model_needs_a_class_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLICK_MODELS, "grade-blind", GradeBlind)
    lists, appeal = mixed_lists(11), 0.25
    model = click_model("grade-blind", appeal=appeal, eta=1.0, q=None)
    slates = random_slates(lists, seed=0)
    shown = shown_clicks(model, lists, slates, repeats=9, seed=0)
    positions = np.arange(1, slates.shape[1] + 1)
    np.testing.assert_allclose(shown, np.where(slates < 0, 0, appeal / positions))
    assert labels_of(simulate_clicks(click_model("grade-blind"), lists, seed=0)).all()
    with pytest.raises(UsageError, match="'grade-blind' has no option 'q'; it has appeal, eta, relevant_from"):
        click_model("grade-blind", q=0.5)


def test_slates_must_fit_the_lists_and_repeats_be_positive() -> None:
    lists = ItemLists(np.zeros((2, 1)), [0, 2], labels=[0, 2])
    with pytest.raises(UsageError, match="2 slates for 1 lists"):
        shown_clicks(CascadeModel(), lists, np.zeros((2, 1), dtype=np.int64), repeats=1, seed=0)
    with pytest.raises(UsageError, match="repeats must be at least 1"):
        shown_clicks(CascadeModel(), lists, np.zeros((1, 1), dtype=np.int64), repeats=0, seed=0)


@pytest.mark.parametrize(
    "model", [CascadeModel(eta=0.3), DiverseClicks(eta=0.2), SimilarClicks(), PositionBasedModel(eta=0.3)]
)
def test_a_probability_of_relevance_gives_the_mean_over_relevances(model: ClickModel) -> None:
    """Sum the exact click rates of all 2^3 relevances, weighted, against scans that know the probability only."""
    p = np.array([0.9, 0.4, 0.6])
    lists = ItemLists(features=TWO_AND_ONE, offsets=[0, 3])
    similar = None if model.q is None else similar_items(lists, model.q)
    slates = np.array([[1, 0, 2]])
    draws = draw([(1,)], 3, 40_000)
    expected = np.zeros(3)
    for outcome in product([0.0, 1.0], repeat=3):
        weight = np.where(np.array(outcome) == 1, p, 1 - p).prod()
        expected += weight * scan(model, slates, np.array([outcome]), similar, draws).probability.mean(axis=0)[0]
    scanned = scan(model, slates, p[None], similar, draws)
    np.testing.assert_allclose(scanned.probability.mean(axis=0)[0], expected, atol=MONTE_CARLO)
    np.testing.assert_allclose(scanned.clicks.mean(axis=0)[0], expected, atol=MONTE_CARLO)


def test_clicks_are_not_taken_for_grades() -> None:
    lists = ItemLists([[0.0], [1.0]], [0, 2], labels=[0, 1])
    with pytest.raises(UsageError, match="relevant_from=1"):
        check_grades(DiverseClicks(), lists)
    check_grades(DiverseClicks(relevant_from=1), lists)
    check_grades(DiverseClicks(), ItemLists([[0.0], [1.0]], [0, 2], labels=[0, 2]))
