"""Generated lists, shaped like WEB30K, for which the true probability of relevance is known.

The paper simulates clicks on WEB30K and Yahoo, where nobody knows how good a slate could be. Here every item is drawn
from a model that is written down, so that the best possible order can be computed and quality read on a scale up to it.

List q has 3 to 8 topics of uneven size. Topic k has a place c_qk ~ N(0, I) in a space of four dimensions, drawn anew
for every list: no place means anything by itself, only places of the same list can be compared. Item i of topic k has

    place     z_i = √(1 − s²) c_qk + s ε_i                         s = SPREAD
    utility   u_i = list_q + topic_qk + own_i                      independent normals
    grade     g_i = number of cuts t_1 < … < t_4 below u_i + ν_i   ν ~ N(0, LUCK), and all variances add up to 1
    relevance P(g_i ≥ 2 | u_i) = Φ((u_i − t_2) / √LUCK)

u + ν is standard normal, so cuts at the normal quantiles of GRADE_SHARES give exactly those shares in expectation.
Most of the utility belongs to the topic: the items that look best resemble each other, and sorting by relevance repeats
itself. What is not utility is luck that no column shows.

A column j is level_j + scale_j · h(v_ij), where v has mean 0 and variance 1 and h is v itself or, for a heavy tail,
exp(tail_j · v); some columns are then rounded down to whole numbers. By kind of column:

    place     v = a_j · z_i and a little noise, with a large scale: these columns decide the Euclidean distance
    view      v = one of four noisy signals of u_i and more noise
    junk      v = noise
    list      v = one draw for all items of a list, with any scale: it cancels in distances within the list
    constant  the same value everywhere

The columns are a function of their number alone, so that lists from different seeds belong together: one seed to train
with, another to test with. Every random quantity has a stream of its own, so that the size of the blocks in which lists
are generated changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.random import Generator
from scipy.special import ndtr, ndtri

from seq2slate.data.lists import (
    BoolArray,
    FloatArray,
    IntArray,
    ItemLists,
    Strings,
    numbers_as_strings,
    offsets_from_lengths,
)
from seq2slate.errors import UsageError
from seq2slate.progress import track

GRADE_SHARES = (0.52, 0.32, 0.13, 0.02, 0.01)
"""The share of grades 0 to 4, as in WEB30K: 16% of the items are relevant (2 and up)."""
LIST_UTILITY, TOPIC_UTILITY, OWN_UTILITY = 0.15, 0.30, 0.05
"""The variance of each part of the utility."""
LUCK = 1 - LIST_UTILITY - TOPIC_UTILITY - OWN_UTILITY
"""The variance of what stands between utility and grade."""
LENGTH_SIGMA = 0.5
"""The standard deviation of the logarithm of the list length; 0.53 in a sample of 178 lists of WEB30K."""
TOPICS = (3, 8)
"""The smallest and the largest number of topics of a list, and all between are equally likely."""
PLACE_DIMENSIONS = 4
SPREAD = 0.35
"""How far items lie from the middle of their topic, where everything together has a standard deviation of 1."""
SIGNALS = 4
SIGNAL_ERROR = 0.1
"""The variance of the error of a signal."""
PLACE_NOISE, VIEW_NOISE = 0.05, 0.5
"""The share of a column's own noise in the variance of its v."""
MIN_FEATURES = 4

_CUTS = ndtri(np.cumsum(GRADE_SHARES)[:-1])
_RELEVANT_CUT = _CUTS[1]  # between grades 1 and 2
_BLOCK_CELLS = 1 << 22  # features worked on at once: every temporary array of them takes 16 MB
_COLUMNS_SEED = 30


def make_synthetic_lists(n_lists: int, *, items: float = 110, features: int = 136, seed: int) -> ItemLists:
    """Return lists with grades 0 to 4, in random order, with `items` items on average and at least one.

    `labels` are the grades; `relevance_probability` is the true probability of a grade of 2 or more, which is no
    feature. The lists are ready for a base ranker to order them and a simulated user to click on them.

    >>> lists = make_synthetic_lists(200, items=20, features=16, seed=1)
    >>> len(lists), lists.n_features, lists.list_ids[12].as_py(), lists[12].item_ids[3].as_py()
    (200, 16, 'g1-12', 'g1-12-3')
    >>> bool(abs((lists.labels >= 2).mean() - lists.relevance_probability.mean()) < 0.02)
    True
    """
    _check_request(n_lists, items, features, seed)
    streams = _Streams.from_seed(seed)
    offsets = offsets_from_lengths(_draw_lengths(n_lists, items, streams))
    columns = _Columns.of(features)
    table = np.empty((offsets[-1], features), dtype=np.float32)
    grades, probability = np.empty((2, offsets[-1]), dtype=np.float32)
    for block in track(list(_blocks(offsets, max_items=_BLOCK_CELLS // features)), "generating lists"):
        rows = slice(offsets[block.start], offsets[block.stop])
        latent = _draw_latent(np.diff(offsets[block.start : block.stop + 1]), streams)
        luck = streams.luck.standard_normal(len(latent.utility))
        columns.draw(latent, streams, table[rows])
        grades[rows] = np.searchsorted(_CUTS, latent.utility + LUCK**0.5 * luck)
        probability[rows] = ndtr((latent.utility - _RELEVANT_CUT) / LUCK**0.5)
    list_ids, item_ids = _ids(offsets, seed)
    return ItemLists(table, offsets, grades, list_ids, item_ids, relevance_probability=probability)


def _check_request(n_lists: int, items: float, features: int, seed: int) -> None:
    if n_lists < 0:
        raise UsageError(f"the number of lists must not be negative, got {n_lists}")
    if not 1 <= items < np.inf:
        raise UsageError(f"every list has at least one item, so the mean must be 1 or more, got {items}")
    if features < MIN_FEATURES:
        raise UsageError(
            f"generated data needs at least {MIN_FEATURES} features (two that place an item, one that shows its "
            f"relevance, one that shows nothing), got {features}"
        )
    if seed < 0:
        raise UsageError(f"seed must not be negative, got {seed}")


class _Streams(NamedTuple):
    """A source of randomness for every quantity, so that none depends on how much of another was drawn before."""

    stratum: Generator
    length: Generator
    rounding: Generator
    n_topics: Generator
    topic_size: Generator
    topic: Generator
    topic_place: Generator
    own_place: Generator
    list_utility: Generator
    topic_utility: Generator
    own_utility: Generator
    luck: Generator
    signal_error: Generator
    place_noise: Generator
    view_noise: Generator
    junk: Generator
    list_column: Generator

    @classmethod
    def from_seed(cls, seed: int) -> _Streams:
        return cls(*(np.random.default_rng([seed, number]) for number in range(len(cls._fields))))


def _draw_lengths(n_lists: int, mean: float, streams: _Streams) -> IntArray:
    """Return 1 + a log-normal number, rounded up or down at random so that the expected length is the mean exactly.

    One draw from each of `n_lists` equally likely strata keeps the mean of few lists at what was asked for, too.
    """
    from_top = (streams.stratum.permutation(n_lists) + 1 - streams.length.random(n_lists)) / n_lists  # in (0, 1]
    after_first = (mean - 1) * np.exp(-LENGTH_SIGMA * ndtri(from_top) - LENGTH_SIGMA**2 / 2)
    after_first += streams.rounding.random(n_lists)
    return 1 + np.asarray(after_first, dtype=np.int64)


def _blocks(offsets: IntArray, *, max_items: int) -> Iterator[slice]:
    """Yield neighbouring lists with at most `max_items` items together, or one longer list."""
    start = 0
    while start < len(offsets) - 1:
        fitting = int(np.searchsorted(offsets, offsets[start] + max_items, side="right")) - 1
        stop = max(start + 1, fitting)
        yield slice(start, stop)
        start = stop


class _Latent(NamedTuple):
    """What is behind the items of some lists; no ranker may see it."""

    list_index: IntArray
    """(T,) which list each item belongs to."""
    topic: IntArray
    """(T,) the topic of each item, numbered within its list."""
    place: FloatArray
    """(T, PLACE_DIMENSIONS) where each item lies."""
    utility: npt.NDArray[np.float64]
    """(T,) how good each item is, before luck."""


def _draw_latent(lengths: IntArray, streams: _Streams) -> _Latent:
    fewest, most = TOPICS
    n_lists, n_items = len(lengths), int(lengths.sum())
    list_index = np.repeat(np.arange(n_lists), lengths)
    n_topics = fewest + np.floor((most - fewest + 1) * streams.n_topics.random(n_lists))
    # Exponentials divided by their sum: every way to share out the items among the topics is equally likely.
    sizes = streams.topic_size.standard_exponential((n_lists, most)) * (np.arange(most) < n_topics[:, None])
    shares = np.cumsum(sizes, axis=1)
    shares /= shares[:, -1:]
    topic = (streams.topic.random(n_items)[:, None] >= shares[list_index]).sum(axis=1)
    topic_place = _normals(streams.topic_place, n_lists, most, PLACE_DIMENSIONS)[list_index, topic]
    own_place = _normals(streams.own_place, n_items, PLACE_DIMENSIONS)
    utility = (
        LIST_UTILITY**0.5 * streams.list_utility.standard_normal(n_lists)[list_index]
        + TOPIC_UTILITY**0.5 * streams.topic_utility.standard_normal((n_lists, most))[list_index, topic]
        + OWN_UTILITY**0.5 * streams.own_utility.standard_normal(n_items)
    )
    return _Latent(list_index, topic, (1 - SPREAD**2) ** 0.5 * topic_place + SPREAD * own_place, utility)


def _draw_signals(utility: npt.NDArray[np.float64], streams: _Streams) -> FloatArray:
    """Return (T, SIGNALS) views of the utility with variance 1."""
    errors = SIGNAL_ERROR**0.5 * _normals(streams.signal_error, len(utility), SIGNALS)
    deviation = (1 - LUCK + SIGNAL_ERROR) ** 0.5
    signals: FloatArray = (utility.astype(np.float32)[:, None] + errors) / deviation
    return signals


class _Kind(NamedTuple):
    """The columns of one kind: where they stand and how they look."""

    at: IntArray
    """Their numbers in the table."""
    level: FloatArray
    scale: FloatArray
    tail: FloatArray
    """0 for a column that is its v, stretched and moved."""
    whole: BoolArray
    """True for a column that is rounded down."""

    def write(self, v: FloatArray, table: FloatArray) -> None:
        """Turn v (T, columns), which is overwritten, into the columns' values in the table (T, F)."""
        heavy = self.tail > 0
        v[:, heavy] = np.exp(self.tail[heavy] * v[:, heavy])
        v *= self.scale
        v += self.level
        v[:, self.whole] = np.floor(v[:, self.whole])
        table[:, self.at] = v


@dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of all tables with as many of them."""

    place: _Kind
    view: _Kind
    junk: _Kind
    list: _Kind
    constant: _Kind
    directions: FloatArray
    """(PLACE_DIMENSIONS, place columns) unit vectors: each place column looks along one of them."""

    @classmethod
    def of(cls, n_features: int) -> _Columns:
        rng = np.random.default_rng([_COLUMNS_SEED, n_features])
        counts = _column_counts(n_features)
        place, view, junk, per_list, constant = np.split(rng.permutation(n_features), np.cumsum(counts)[:-1])
        place_scale = rng.uniform(4, 8, len(place))
        return cls(
            # Well above 0, where the logarithm of the default normalisation bends places only a little.
            place=_kind(place, level=3 * place_scale, scale=place_scale),
            view=_small_kind(view, rng),
            junk=_small_kind(junk, rng),
            list=_kind(per_list, scale=10 ** rng.uniform(1, 4, len(per_list)), tail=1, whole=True),
            constant=_kind(constant, level=np.arange(len(constant)) % 2, scale=0),
            directions=_directions(len(place), rng),
        )

    def draw(self, latent: _Latent, streams: _Streams, table: FloatArray) -> None:
        """Fill the table (T, F) with the features of some items."""
        n_items, n_lists = len(table), int(latent.list_index[-1]) + 1
        located = np.zeros((n_items, len(self.place.at)), dtype=np.float32)
        for coordinate, weights in zip(latent.place.T, self.directions, strict=True):
            located += coordinate[:, None] * weights  # a matrix product may round differently for other block sizes
        signals = _draw_signals(latent.utility, streams)[:, np.arange(len(self.view.at)) % SIGNALS]
        per_list = _normals(streams.list_column, n_lists, len(self.list.at))
        self.place.write(_with_noise(located, PLACE_NOISE, streams.place_noise), table)
        self.view.write(_with_noise(signals, VIEW_NOISE, streams.view_noise), table)
        self.junk.write(_normals(streams.junk, n_items, len(self.junk.at)), table)
        self.list.write(per_list[latent.list_index], table)
        self.constant.write(np.zeros((n_items, len(self.constant.at)), dtype=np.float32), table)


def _column_counts(n_features: int) -> tuple[int, int, int, int, int]:
    """Return how many place, view, junk, list and constant columns there are: a third each, after a few of the last."""
    few = n_features // 17
    place = math.ceil((n_features - 2 * few) / 3)
    view = math.ceil((n_features - 2 * few - place) / 2)
    return place, view, n_features - 2 * few - place - view, few, few


def _kind(
    at: IntArray,
    *,
    level: npt.ArrayLike = 0,
    scale: npt.ArrayLike = 1,
    tail: npt.ArrayLike = 0,
    whole: npt.ArrayLike = False,
) -> _Kind:
    level, scale, tail = (np.broadcast_to(values, at.shape).astype(np.float32) for values in (level, scale, tail))
    return _Kind(at, level, scale, tail, np.broadcast_to(whole, at.shape).astype(np.bool_))


def _small_kind(at: IntArray, rng: Generator) -> _Kind:
    """Return columns that places outweigh in a distance: heavy, whole and heavy, heavy, plain, and so on in turn."""
    turn = np.arange(len(at)) % 4
    tail = np.where(turn == 3, 0, rng.uniform(0.8, 1.3, len(at)))
    deviation = rng.uniform(0.5, 1.5, len(at)) * np.where(turn == 1, 2, 1)
    # The standard deviation of exp(tail · v) for a standard normal v, and of v itself.
    unscaled = np.where(turn == 3, 1, np.sqrt(np.expm1(tail**2) * np.exp(tail**2)))
    return _kind(at, scale=deviation / unscaled, tail=tail, whole=turn == 1)


def _directions(n: int, rng: Generator) -> FloatArray:
    """Return n directions, orthogonal by PLACE_DIMENSIONS in a row, so that distances favour none."""
    n_bases = math.ceil(n / PLACE_DIMENSIONS)
    bases = np.linalg.qr(rng.standard_normal((n_bases, PLACE_DIMENSIONS, PLACE_DIMENSIONS)))[0]
    return np.concatenate(bases, axis=1)[:, :n].astype(np.float32)


def _with_noise(v: FloatArray, share: float, stream: Generator) -> FloatArray:
    """Return v, of variance 1, with noise as a share of a variance that stays 1."""
    noise = _normals(stream, *v.shape)
    noise *= share**0.5
    noise += (1 - share) ** 0.5 * v
    return noise


def _normals(rng: Generator, *shape: int) -> FloatArray:
    return rng.standard_normal(shape, dtype=np.float32)


def _ids(offsets: IntArray, seed: int) -> tuple[Strings, Strings]:
    """Return ids that no other seed gives: list 12 of seed 7 is "g7-12" and its first item "g7-12-0"."""
    lengths = np.diff(offsets)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    number = numbers_as_strings(np.arange(offsets[-1]) - offsets[owner])
    list_ids = _joined(pa.scalar(f"g{seed}", pa.large_string()), numbers_as_strings(np.arange(len(lengths))))
    return list_ids, _joined(list_ids.take(pa.array(owner)), number)


def _joined(first: pa.Scalar | Strings, second: Strings) -> Strings:
    return pc.binary_join_element_wise(first, second, pa.scalar("-", pa.large_string()))
