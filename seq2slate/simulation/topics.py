"""World `topics`: the items of a list belong to topics, which lie elsewhere in every list.

List q has 3 to 8 topics of uneven size. Topic k has a centre c_qk ~ N(0, I) in four dimensions, drawn anew for every
list: an embedding means nothing by itself, only relative to those of the same list. Item i of topic k has

    embedding  z_i = √(1 − s²) c_qk + s ε_i                         s = SPREAD
    utility    u_i = list_q + topic_qk + own_i                      independent normals
    grade      g_i = number of cuts t_1 < … < t_4 below u_i + ν_i   ν ~ N(0, GRADE_NOISE); all variances sum to 1
    relevance  P(g_i ≥ 2 | u_i) = Φ((u_i − t_2) / √GRADE_NOISE)

u + ν is standard normal, so cuts at the normal quantiles of GRADE_SHARES give exactly those shares in expectation.
Most of the utility belongs to the topic: the best items are similar to each other, and sorting by relevance is
redundant. The grade noise shows in no column.

Column j is level_j + scale_j · h(v_ij), where v has mean 0 and variance 1 and h is v itself or, for a heavy tail,
exp(tail_j · v); some columns are then rounded down to whole numbers. By kind of column:

    embedding  v = a_j · z_i and a little noise, with a large scale: these columns decide the Euclidean distance
    signal     v = one of four noisy signals of u_i and more noise
    noise      v = noise
    list       v = one draw for all items of a list, with any scale: it cancels in distances within the list
    constant   the same value everywhere

The columns are a function of their number alone, so that lists from different seeds share one distribution: one seed
to train with, another to test with. Every random quantity has a stream of its own, so that the size of the blocks in
which lists are generated changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from seq2slate.data.lists import BoolArray, FloatArray, IntArray
from seq2slate.errors import UsageError
from seq2slate.simulation.world import Doubles, Relevance, normals, stratified_lengths

GRADE_SHARES = (0.52, 0.32, 0.13, 0.02, 0.01)
"""The share of grades 0 to 4, as in WEB30K: 16% of the items are relevant (2 and up)."""
LIST_UTILITY, TOPIC_UTILITY, OWN_UTILITY = 0.15, 0.30, 0.05
"""The variance of each part of the utility."""
GRADE_NOISE = 1 - LIST_UTILITY - TOPIC_UTILITY - OWN_UTILITY
"""The variance of the noise between utility and grade."""
LENGTH_SIGMA = 0.5
"""The standard deviation of the log length of a list; 0.53 in a sample of 178 lists of WEB30K."""
TOPICS = (3, 8)
"""The smallest and the largest number of topics of a list, uniformly distributed."""
EMBEDDING_DIMENSIONS = 4
SPREAD = 0.35
"""The standard deviation of items around the centre of their topic; that of all embeddings is 1."""
SIGNALS = 4
SIGNAL_ERROR = 0.1
"""The variance of the error of a signal."""
EMBEDDING_NOISE, SIGNAL_NOISE = 0.05, 0.5
"""The share of a column's own noise in the variance of its v."""
MIN_FEATURES = 4
FEATURES = 136
"""The number of columns unless another is asked for: that of WEB30K."""

_CUTS = np.array([NormalDist().inv_cdf(share) for share in np.cumsum(GRADE_SHARES)[:-1].tolist()])
_RELEVANT_CUT = _CUTS[1]  # between grades 1 and 2
_COLUMNS_SEED = 30


class TopicsWorld:
    """The world with the random streams of a seed, as `World` describes it."""

    def __init__(self, features: int | None, seed: int) -> None:
        self.n_features = FEATURES if features is None else features
        if self.n_features < MIN_FEATURES:
            raise UsageError(
                f"world topics needs at least {MIN_FEATURES} features (two embedding columns, one signal and one "
                f"noise column), got {self.n_features}"
            )
        self._streams = _Streams.from_seed(seed)
        self._columns = _Columns.of(self.n_features)

    def draw_lengths(self, n_lists: int, mean: float) -> IntArray:
        """Return log-normal lengths (Q,)."""
        stratum, length, rounding = self._streams[:3]
        return stratified_lengths(n_lists, mean, _log_normal, stratum=stratum, length=length, rounding=rounding)

    def draw_items(self, lengths: IntArray, table: FloatArray) -> Relevance:
        """Write the features of the next lists into the table (T, F)."""
        from scipy.special import ndtr  # a tenth of a second, which `import seq2slate` and `--help` need not take

        latent = _draw_latent(lengths, self._streams)
        noise = self._streams.grade_noise.standard_normal(len(latent.utility))
        self._columns.draw(latent, self._streams, table)
        return Relevance(
            grade=np.searchsorted(_CUTS, latent.utility + GRADE_NOISE**0.5 * noise).astype(np.float32),
            probability=ndtr((latent.utility - _RELEVANT_CUT) / GRADE_NOISE**0.5),
        )


def _log_normal(from_top: Doubles) -> Doubles:
    """Return log-normal lengths of mean 1, the longest for the smallest probability."""
    from scipy.special import ndtri

    lengths: Doubles = np.exp(-LENGTH_SIGMA * ndtri(from_top) - LENGTH_SIGMA**2 / 2)
    return lengths


class _Streams(NamedTuple):
    """A random stream for every quantity, so that none depends on how much of another was drawn before."""

    stratum: Generator
    length: Generator
    rounding: Generator
    n_topics: Generator
    topic_size: Generator
    topic: Generator
    topic_embedding: Generator
    own_embedding: Generator
    list_utility: Generator
    topic_utility: Generator
    own_utility: Generator
    grade_noise: Generator
    signal_error: Generator
    embedding_noise: Generator
    signal_noise: Generator
    noise_column: Generator
    list_column: Generator

    @classmethod
    def from_seed(cls, seed: int) -> _Streams:
        return cls(*(np.random.default_rng([seed, number]) for number in range(len(cls._fields))))


class _Latent(NamedTuple):
    """The latent variables of some items, which no ranker may see."""

    list_index: IntArray
    """(T,) which list each item belongs to."""
    topic: IntArray
    """(T,) the topic of each item, numbered within its list."""
    embedding: FloatArray
    """(T, EMBEDDING_DIMENSIONS)"""
    utility: Doubles
    """(T,) before the grade noise."""


def _draw_latent(lengths: IntArray, streams: _Streams) -> _Latent:
    fewest, most = TOPICS
    n_lists, n_items = len(lengths), int(lengths.sum())
    list_index = np.repeat(np.arange(n_lists), lengths)
    n_topics = fewest + np.floor((most - fewest + 1) * streams.n_topics.random(n_lists))
    # Exponentials divided by their sum: a uniform Dirichlet distribution.
    sizes = streams.topic_size.standard_exponential((n_lists, most)) * (np.arange(most) < n_topics[:, None])
    shares = np.cumsum(sizes, axis=1)
    shares /= shares[:, -1:]
    topic = (streams.topic.random(n_items)[:, None] >= shares[list_index]).sum(axis=1)
    topic_embedding = normals(streams.topic_embedding, n_lists, most, EMBEDDING_DIMENSIONS)[list_index, topic]
    own_embedding = normals(streams.own_embedding, n_items, EMBEDDING_DIMENSIONS)
    utility = (
        LIST_UTILITY**0.5 * streams.list_utility.standard_normal(n_lists)[list_index]
        + TOPIC_UTILITY**0.5 * streams.topic_utility.standard_normal((n_lists, most))[list_index, topic]
        + OWN_UTILITY**0.5 * streams.own_utility.standard_normal(n_items)
    )
    return _Latent(list_index, topic, (1 - SPREAD**2) ** 0.5 * topic_embedding + SPREAD * own_embedding, utility)


def _draw_signals(utility: Doubles, streams: _Streams) -> FloatArray:
    """Return (T, SIGNALS) noisy copies of the utility, with variance 1."""
    errors = SIGNAL_ERROR**0.5 * normals(streams.signal_error, len(utility), SIGNALS)
    deviation = (1 - GRADE_NOISE + SIGNAL_ERROR) ** 0.5
    signals: FloatArray = (utility.astype(np.float32)[:, None] + errors) / deviation
    return signals


class _Kind(NamedTuple):
    """The columns of one kind: their numbers, and h with its level and scale."""

    at: IntArray
    """Their numbers in the table (T, F)."""
    level: FloatArray
    scale: FloatArray
    tail: FloatArray
    """0 for a column with h(v) = v."""
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
    """The columns of all lists with that many features."""

    embedding: _Kind
    signal: _Kind
    noise: _Kind
    list: _Kind
    constant: _Kind
    directions: FloatArray
    """(EMBEDDING_DIMENSIONS, embedding columns) unit vectors: each embedding column projects on one of them."""

    @classmethod
    def of(cls, n_features: int) -> _Columns:
        rng = np.random.default_rng([_COLUMNS_SEED, n_features])
        counts = _column_counts(n_features)
        embedding, signal, noise, per_list, constant = np.split(rng.permutation(n_features), np.cumsum(counts)[:-1])
        embedding_scale = rng.uniform(4, 8, len(embedding))
        return cls(
            # Well above 0, where the logarithm of the default scaling is nearly linear.
            embedding=_kind(embedding, level=3 * embedding_scale, scale=embedding_scale),
            signal=_small_kind(signal, rng),
            noise=_small_kind(noise, rng),
            list=_kind(per_list, scale=10 ** rng.uniform(1, 4, len(per_list)), tail=1, whole=True),
            constant=_kind(constant, level=np.arange(len(constant)) % 2, scale=0),
            directions=_directions(len(embedding), rng),
        )

    def draw(self, latent: _Latent, streams: _Streams, table: FloatArray) -> None:
        """Fill the table (T, F) with the features of some items."""
        n_items, n_lists = len(table), int(latent.list_index[-1]) + 1
        projected = np.zeros((n_items, len(self.embedding.at)), dtype=np.float32)
        for coordinate, weights in zip(latent.embedding.T, self.directions, strict=True):
            projected += coordinate[:, None] * weights  # a matrix product may round differently for other block sizes
        signals = _draw_signals(latent.utility, streams)[:, np.arange(len(self.signal.at)) % SIGNALS]
        per_list = normals(streams.list_column, n_lists, len(self.list.at))
        self.embedding.write(_with_noise(projected, EMBEDDING_NOISE, streams.embedding_noise), table)
        self.signal.write(_with_noise(signals, SIGNAL_NOISE, streams.signal_noise), table)
        self.noise.write(normals(streams.noise_column, n_items, len(self.noise.at)), table)
        self.list.write(per_list[latent.list_index], table)
        self.constant.write(np.zeros((n_items, len(self.constant.at)), dtype=np.float32), table)


def _column_counts(n_features: int) -> tuple[int, int, int, int, int]:
    """Return the number of embedding, signal, noise, list and constant columns; the last two kinds are few."""
    few = n_features // 17
    embedding = math.ceil((n_features - 2 * few) / 3)
    signal = math.ceil((n_features - 2 * few - embedding) / 2)
    return embedding, signal, n_features - 2 * few - embedding - signal, few, few


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
    """Return columns that embeddings outweigh in a distance: in turn heavy, whole and heavy, heavy, plain."""
    turn = np.arange(len(at)) % 4
    tail = np.where(turn == 3, 0, rng.uniform(0.8, 1.3, len(at)))
    deviation = rng.uniform(0.5, 1.5, len(at)) * np.where(turn == 1, 2, 1)
    # The standard deviation of exp(tail · v) for a standard normal v, and of v itself.
    unscaled = np.where(turn == 3, 1, np.sqrt(np.expm1(tail**2) * np.exp(tail**2)))
    return _kind(at, scale=deviation / unscaled, tail=tail, whole=turn == 1)


def _directions(n: int, rng: Generator) -> FloatArray:
    """Return n unit vectors, every EMBEDDING_DIMENSIONS of them an orthogonal basis, so that distances favour none."""
    n_bases = math.ceil(n / EMBEDDING_DIMENSIONS)
    bases = np.linalg.qr(rng.standard_normal((n_bases, EMBEDDING_DIMENSIONS, EMBEDDING_DIMENSIONS)))[0]
    return np.concatenate(bases, axis=1)[:, :n].astype(np.float32)


def _with_noise(v: FloatArray, share: float, stream: Generator) -> FloatArray:
    """Return v, of variance 1, with noise as a share of a variance that stays 1."""
    noise = normals(stream, *v.shape)
    noise *= share**0.5
    noise += (1 - share) ** 0.5 * v
    return noise
