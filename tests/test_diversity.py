"""MMR and the greedy DPP against slow, obvious references, and through the battery."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.spatial.distance import pdist, squareform

from seq2slate import Columns
from seq2slate.baselines.diversity import GreedyDpp, Mmr
from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import ItemLists, offsets_from_lengths
from seq2slate.data.ranker import Ranker
from seq2slate.errors import DataError, UsageError
from seq2slate.metrics import ndcg
from seq2slate.saving import load_saved
from tests.checks import NAMES, check_ranker, mixed_lists

Doubles = npt.NDArray[np.float64]
KINDS = (Mmr, GreedyDpp)
Kind = type[Mmr] | type[GreedyDpp]

both = pytest.mark.parametrize("kind", KINDS)


def clustered_lists(seed: int, n_lists: int = 40, n_items: int = 12) -> ItemLists:
    """Lists with three clusters of items, whose users click once in each cluster: what stands first of it."""
    rng = np.random.default_rng(seed)
    clusters = rng.integers(0, 3, size=(n_lists, n_items))
    features = rng.normal(size=(n_lists, 3, 5))[np.arange(n_lists)[:, None], clusters] * 3
    features += rng.normal(size=features.shape) * 0.3
    first = np.stack([(clusters == c).cumsum(axis=1) * (clusters == c) == 1 for c in range(3)]).any(axis=0)
    return ItemLists(features.reshape(-1, 5), np.arange(n_lists + 1) * n_items, labels=first.ravel())


def similarity_of(lists: ItemLists, transform: FeatureTransform) -> Doubles:
    """The similarities within a single list, from explicit distances."""
    squares = squareform(pdist(transform.apply(lists).dense.astype(np.float64), "sqeuclidean"))
    pairs = squares[np.triu_indices(len(squares), 1)]
    return np.exp(-squares / pairs.mean()) if len(pairs) and pairs.mean() > 0 else np.ones_like(squares)


def mmr_reference(relevance: Doubles, similarity: Doubles, trade_off: float) -> list[int]:
    placed: list[int] = []
    while len(placed) < len(relevance):
        left = [item for item in range(len(relevance)) if item not in placed]
        nearest = {item: max((similarity[item, other] for other in placed), default=0.0) for item in left}
        placed.append(max(left, key=lambda item: trade_off * relevance[item] - (1 - trade_off) * nearest[item]))
    return placed


def dpp_reference(relevance: Doubles, similarity: Doubles, trade_off: float) -> list[int]:
    """Place what makes the determinant of the kernel of all placed items largest."""
    quality = np.exp(trade_off / (2 * (1 - trade_off)) * relevance)
    kernel = quality[:, None] * similarity * quality
    placed: list[int] = []
    while len(placed) < len(relevance):
        left = [item for item in range(len(relevance)) if item not in placed]
        placed.append(max(left, key=lambda item: np.linalg.det(kernel[np.ix_([*placed, item], [*placed, item])])))
    return placed


def fitted(
    kind: Kind, trade_off: float, transform: FeatureTransform, *, score_column: str | None = None
) -> Mmr | GreedyDpp:
    """A ranker as if `fit` had chosen this trade-off and this transform."""
    ranker = kind(score_column=score_column)
    ranker.trade_off_, ranker.transform_, ranker.trials_ = trade_off, transform, ()
    ranker.columns_ = Columns()
    return ranker


def without_duplicates(seed: int) -> ItemLists:
    return mixed_lists(seed)[[number for number, name in enumerate(NAMES) if name != "duplicates"]]


@both
@pytest.mark.parametrize("trade_off", [0.0, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("scaling", ["signed-log", "none"])
def test_slates_equal_the_reference(kind: Kind, trade_off: float, scaling: Any) -> None:
    reference = {Mmr: mmr_reference, GreedyDpp: dpp_reference}[kind]
    for seed in range(3):
        lists = without_duplicates(seed)
        transform = FeatureTransform.fit(lists, scaling=scaling)
        slates = fitted(kind, trade_off, transform).rank(lists.batch())
        for slate, one in zip(slates, lists, strict=True):
            relevance = 1 - np.arange(one.n_items) / max(one.n_items, 1)
            expected = reference(relevance, similarity_of(one, transform), trade_off)
            assert slate[: one.n_items].tolist() == expected


@both
def test_relevance_alone_gives_the_base_order_or_sorts_by_the_score_column(kind: Kind) -> None:
    lists = mixed_lists(3)
    transform = FeatureTransform.fit(lists)
    mask, positions = lists.batch().mask, np.arange(lists.batch().n_slots)
    np.testing.assert_array_equal(fitted(kind, 1.0, transform).rank(lists.batch()), np.where(mask, positions, -1))
    by_column = fitted(kind, 1.0, transform, score_column="f2").rank(lists.batch())
    for slate, one in zip(by_column, lists, strict=True):
        assert slate[: one.n_items].tolist() == np.argsort(-one.features[:, 1], kind="stable").tolist()


@pytest.mark.parametrize(("kind", "trade_off"), [(Mmr, 0.75), (GreedyDpp, 0.95)])
def test_scores_count_by_their_distances_and_not_by_their_ranks_alone(kind: Kind, trade_off: float) -> None:
    """The second item resembles the first: it follows if the third is far worse, and not if it is nearly as good."""
    for third, expected in ((0.8, [0, 2]), (0.01, [0, 1])):
        rows = [[0.0, 0.0, 1.0], [0.0, 0.1, 0.9], [9.0, 0.0, third], [9.0, 9.0, 0.0]]
        lists = ItemLists(rows, [0, 4], feature_names=("x", "y", "score"))
        transform = FeatureTransform.fit(lists, scaling="none")
        assert fitted(kind, trade_off, transform, score_column="score").rank(lists.batch(), 2).tolist() == [expected]


@both
def test_less_weight_on_relevance_lowers_the_similarity_of_the_top(kind: Kind) -> None:
    lists = clustered_lists(0)
    transform = FeatureTransform.fit(lists)
    means = []
    for trade_off in (1.0, 0.9, 0.7, 0.2):
        slates = fitted(kind, trade_off, transform).rank(lists.batch(), 3)
        tops = [similarity_of(one, transform)[np.ix_(top, top)] for one, top in zip(lists, slates, strict=True)]
        means.append(np.mean([top[np.triu_indices(3, 1)].mean() for top in tops]))
    assert (np.diff(means) < 0).all()
    assert means[-1] < 0.6 * means[0]


@both
@pytest.mark.parametrize("scaling", ["signed-log", "none"])
def test_duplicates_come_after_everything_else_and_in_order(kind: Kind, scaling: Any) -> None:
    distinct = np.random.default_rng(0).normal(size=(4, 6)) * 10.0 ** np.arange(6)  # scales as unequal as WEB30K's
    lists = ItemLists(np.repeat(distinct, 3, axis=0), [0, 12])
    slate = fitted(kind, 1e-4, FeatureTransform.fit(lists, scaling=scaling)).rank(lists.batch())[0]
    assert sorted(slate[:4].tolist()) == [0, 3, 6, 9]
    assert slate[4:].tolist() == [1, 2, 4, 5, 7, 8, 10, 11]


@both
def test_a_list_of_one_item_many_times_keeps_its_order(kind: Kind) -> None:
    lists = ItemLists(np.full((200, 3), 1e8), [0, 200])
    for trade_off in (0.0, 0.5):
        slate = fitted(kind, trade_off, FeatureTransform.fit(lists)).rank(lists.batch())
        assert slate.tolist() == [list(range(200))]


def test_a_long_list_stays_finite() -> None:
    """Far more items than columns: the similarities are nearly singular, and every item is placed all the same."""
    lists = ItemLists(np.random.default_rng(0).normal(size=(600, 2)), [0, 600])
    for trade_off in (0.0, 0.999999):
        slate = fitted(GreedyDpp, trade_off, FeatureTransform.fit(lists)).rank(lists.batch())
        assert sorted(slate[0].tolist()) == list(range(600))


@both
@pytest.mark.parametrize("trade_off", [0.0, 0.5, 0.95])
def test_battery(kind: Kind, trade_off: float, tmp_path: Path) -> None:
    lists = mixed_lists(4)
    ranker = fitted(kind, trade_off, FeatureTransform.fit(lists), score_column="f3" if trade_off else None)

    def save_load(_: Ranker) -> Ranker:
        ranker.save(tmp_path / "saved")
        return kind.from_saved(load_saved(tmp_path / "saved"))

    check_ranker(ranker, lists, save_load=save_load)


@both
def test_fit_chooses_by_validation_and_says_what_it_tried(kind: Kind, tmp_path: Path) -> None:
    train, valid = clustered_lists(1), ItemLists.concat([clustered_lists(2), clustered_lists(9)[:0]])
    chosen = kind().fit(train, valid)
    assert chosen.trade_off_ < 1
    assert {trial.scaling for trial in chosen.trials_} == {"signed-log", "none"}
    batch = valid.batch()
    for trial in chosen.trials_:
        ranker = fitted(kind, trial.trade_off, FeatureTransform.fit(train, scaling=trial.scaling))
        mean = np.mean(ndcg(ranker.rank(batch), batch.labels, mask=batch.mask, k=10))
        assert trial.value == pytest.approx(mean)
    best = max(trial.value for trial in chosen.trials_)
    assert (chosen.transform_.dense.scaling, chosen.trade_off_, best) in chosen.trials_
    chosen.save(tmp_path / "saved")
    assert kind.from_saved(load_saved(tmp_path / "saved")).trials_ == chosen.trials_


@both
def test_among_equals_fit_stays_close_to_the_base_order(kind: Kind) -> None:
    lists = ItemLists(np.random.default_rng(0).normal(size=(20, 2)), [0, 0, 10, 20], labels=np.ones(20))
    assert kind().fit(lists, lists).trade_off_ == 1


@both
def test_fit_says_what_is_missing(kind: Kind) -> None:
    lists = clustered_lists(0, n_lists=3)
    with pytest.raises(DataError, match="validation lists have no labels"):
        kind().fit(lists, replace(lists, labels=None))
    with pytest.raises(DataError, match="no validation list has a positive"):
        kind().fit(lists, replace(lists, labels=np.zeros(lists.n_items, np.float32)))
    with pytest.raises(UsageError, match=r"between 0, .* got 1\.5"):
        kind(trade_offs=[1.5]).fit(lists, lists)
    with pytest.raises(UsageError, match="at least one trade-off"):
        kind(trade_offs=[]).fit(lists, lists)
    with pytest.raises(DataError, match="no dense column 'score'"):
        kind(score_column="score").fit(lists, lists)
    with pytest.raises(DataError, match="feature"):
        kind().fit(lists, lists).rank(ItemLists(np.zeros((2, 3)), offsets_from_lengths(np.array([2]))).batch())
