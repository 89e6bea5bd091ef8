"""World `topics` is what its description says: shares, lengths, topics and columns."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.spatial.distance import pdist, squareform

from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import ItemLists
from seq2slate.simulation import topics
from seq2slate.simulation.synthetic import make_synthetic_lists
from tests.test_synthetic import grades_of, probability_of

topics_lists = partial(make_synthetic_lists, world="topics")


@cache
def web30k_like() -> ItemLists:
    """About 44,000 items with every kind of column."""
    return topics_lists(400, seed=0)


@cache
def many_lists() -> ItemLists:
    """Short and narrow lists, so that their number makes shares sharp."""
    return topics_lists(20_000, items=10, features=4, seed=1)


def topics_of(lists: ItemLists, seed: int) -> npt.NDArray[np.int64]:
    """The topics behind generated lists: drawn again, all lists at once, from the same streams."""
    return topics._draw_latent(lists.lengths, topics._Streams.from_seed(seed)).topic


# Shapes


def test_the_shape_is_that_of_web30k() -> None:
    lists = web30k_like()
    assert len(lists) == 400
    assert lists.n_features == 136
    assert lists.features.dtype == np.float32
    assert np.isfinite(lists.features).all()
    assert set(grades_of(lists)) == {0, 1, 2, 3, 4}
    assert len(np.unique(lists.item_ids.to_numpy(zero_copy_only=False))) == lists.n_items
    assert lists.checked() is lists


def test_lengths_are_log_normal() -> None:
    logs = np.log(topics_lists(5000, features=4, seed=3).lengths)
    assert logs.std() == pytest.approx(topics.LENGTH_SIGMA, rel=0.03)
    assert abs(stats.skew(logs)) < 0.1


@pytest.mark.parametrize("features", [*range(4, 40), 136, 300])
def test_every_number_of_features_has_every_kind_of_column_that_matters(features: int) -> None:
    embedding, signal, noise, per_list, constant = topics._column_counts(features)
    assert embedding + signal + noise + per_list + constant == features
    assert min(embedding - 1, signal, noise) >= 1
    assert embedding >= signal >= noise >= embedding - 2
    assert topics_lists(2, items=3, features=features, seed=0).n_features == features


def test_columns_mean_the_same_for_every_seed() -> None:
    a, b = (topics_lists(300, items=50, features=34, seed=seed) for seed in (10, 11))
    varying = np.ptp(a.features, axis=0) > 0
    shown, shown_again = (
        np.corrcoef(np.log1p(np.abs(lists.features[:, varying])), probability_of(lists), rowvar=False)[-1, :-1]
        for lists in (a, b)
    )
    assert np.corrcoef(shown, shown_again)[0, 1] > 0.9


# Relevance


def test_grades_have_the_shares_of_web30k() -> None:
    lists = many_lists()
    shares = np.bincount(grades_of(lists), minlength=5) / lists.n_items
    # Grades of a list go together, so the spread of a share is that over lists.
    for grade, share in enumerate(topics.GRADE_SHARES):
        in_list = np.add.reduceat(grades_of(lists) == grade, lists.offsets[:-1], dtype=float)
        error = np.std(in_list - share * lists.lengths) * np.sqrt(len(lists)) / lists.n_items
        assert shares[grade] == pytest.approx(share, abs=4 * error)
        assert error < 0.05 * share


def test_a_list_is_relevant_by_topics() -> None:
    lists = topics_lists(400, items=60, features=4, seed=8)
    group = lists.list_index * topics.TOPICS[1] + topics_of(lists, 8)
    utility = topics._draw_latent(lists.lengths, topics._Streams.from_seed(8)).utility
    counts = np.maximum(np.bincount(group), 1)
    within = utility - (np.bincount(group, utility) / counts)[group]
    own_variance = (within**2).sum() / (lists.n_items - np.count_nonzero(np.bincount(group)))
    assert own_variance == pytest.approx(topics.OWN_UTILITY, rel=0.05)
    assert utility.var() == pytest.approx(1 - topics.GRADE_NOISE, rel=0.1)


def test_features_predict_relevance_but_not_all_of_it() -> None:
    train, test = (topics_lists(300, items=50, seed=seed) for seed in (20, 21))
    transform = FeatureTransform.fit(train)
    x, x_test = (transform.apply(lists).dense.astype(np.float64) for lists in (train, test))
    weights = np.linalg.solve(x.T @ x + 10 * np.eye(x.shape[1]), x.T @ grades_of(train))
    correlation = np.corrcoef(x_test @ weights, probability_of(test))[0, 1]
    assert 0.5 < correlation < 0.95


# Topics


def test_lists_have_a_handful_of_uneven_topics() -> None:
    lists = web30k_like()
    topic = topics_of(lists, 0)
    sizes = np.zeros((len(lists), topics.TOPICS[1]), dtype=int)
    np.add.at(sizes, (lists.list_index, topic), 1)
    assert (sizes > 0).sum(axis=1).mean() > 4
    largest = sizes.max(axis=1) / lists.lengths
    assert 0.3 < largest.mean() < 0.6


def same_topic_is_similar(lists: ItemLists, features: npt.NDArray[np.float32], seed: int) -> tuple[float, float]:
    """How many pairs of one topic are similar (at most the median distance apart), and how many of two topics."""
    topic, pairs = topics_of(lists, seed), []
    for first, last in zip(lists.offsets[:-1], lists.offsets[1:], strict=True):
        distances = pdist(features[first:last])
        same = squareform(topic[first:last, None] == topic[first:last], checks=False)
        pairs.append(np.c_[same, distances <= np.median(distances)])
    same, similar = np.concatenate(pairs).astype(bool).T
    return float(similar[same].mean()), float(similar[~same].mean())


def test_raw_distance_means_topic() -> None:
    lists = web30k_like()[:60]
    within, between = same_topic_is_similar(lists, lists.features, seed=0)
    assert within > 0.9
    assert between < 0.4


def test_topics_are_still_visible_after_scaling() -> None:
    lists = web30k_like()[:60]
    within, between = same_topic_is_similar(lists, FeatureTransform.fit(lists).apply(lists).dense, seed=0)
    assert within > 0.7
    assert between < 0.45


def test_few_features_show_topics_too() -> None:
    lists = topics_lists(60, items=60, features=4, seed=9)
    within, between = same_topic_is_similar(lists, lists.features, seed=9)
    assert within > 0.8
    assert between < 0.5


def test_an_embedding_means_nothing_by_itself() -> None:
    """Topics lie elsewhere in every list: the first topic of one list is no nearer to that of another than the rest."""
    lists = web30k_like()
    latent = topics._draw_latent(lists.lengths, topics._Streams.from_seed(0))
    means = np.array([latent.embedding[latent.topic == topic].mean(axis=0) for topic in range(3)])
    assert (np.abs(means) < 4 / np.sqrt(len(lists))).all()


def test_the_most_relevant_items_are_similar_to_each_other() -> None:
    """Half of all pairs are similar by definition; so would be half of those at the top if topics did not matter."""
    lists, similar_at_top = web30k_like(), []
    probability = probability_of(lists)
    for first, last in zip(lists.offsets[:-1], lists.offsets[1:], strict=True):
        distances = squareform(pdist(lists.features[first:last]))
        top = np.argsort(-probability[first:last])[:10]
        similar = distances <= np.median(squareform(distances))
        similar_at_top.append(similar[top[:, None], top][np.triu_indices(10, 1)].mean())
    assert np.mean(similar_at_top) - 0.5 > 4 * np.std(similar_at_top) / np.sqrt(len(lists))
    assert np.mean(similar_at_top) > 0.56


# Columns


def test_some_columns_are_constant_some_whole_and_some_heavy() -> None:
    x = web30k_like().features.astype(np.float64)
    constant = np.ptp(x, axis=0) == 0
    whole = (x == np.floor(x)).all(axis=0) & ~constant
    kurtosis = stats.kurtosis(x[:, ~constant])
    assert constant.sum() == 136 // 17
    assert 20 <= whole.sum() <= 40
    assert (kurtosis > 10).sum() > 40
    assert (np.abs(kurtosis) < 1).sum() > 40


def test_columns_of_lists_are_the_same_for_all_their_items() -> None:
    lists = web30k_like()
    x = lists.features[:, np.ptp(lists.features, axis=0) > 0]
    largest, smallest = (extreme.reduceat(x, lists.offsets[:-1]) for extreme in (np.maximum, np.minimum))
    assert (largest == smallest).all(axis=0).sum() == 136 // 17
