"""Is what a backend computes what the network computes? Slates and log-probabilities are compared on random lists.

There are 1,000 lists of 1 to 200 items, in the range of the fitted columns and somewhat beyond, some with missing
values, some with duplicates, some of nothing but one item again and again. Two programs round differently, so where two
items have nearly the same score either may be first, and the rest of the slate follows from that. Such a slate is not
taken on trust: the network goes through it in float64, and it passes only if every choice was as good as the best one,
within `TIE`. How many there were is said.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from seq2slate.data.features import FeatureTransform, Vocabulary
from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists, offsets_from_lengths
from seq2slate.data.scaling import NumberColumns
from seq2slate.errors import DataError
from seq2slate.model.decoders import choice_log_probabilities
from seq2slate.model.network import InputLists
from seq2slate.model.slate_model import SlateModel
from seq2slate.progress import track

TIE = 1e-5
"""Scores that differ by no more than this count as equal; float32 scores are a little more exact than that."""
LOG_TOLERANCE = 1e-4
"""How far apart the log-probabilities of a choice may be."""
ROUNDINGS = 10
"""Both tolerances grow by so many times the rounding error of the network itself on a list, which outliers raise."""
LENGTHS = np.repeat(np.arange(1, 201), 5)
"""Of the lists that are compared."""
_AT_ONCE = 25  # lists, so that a batch has several lengths and stays small


@dataclass(frozen=True)
class Parity:
    """What the comparison found."""

    n_lists: int
    near_ties: int
    """Lists whose slates differ because two scores were nearly equal."""
    largest_gap: float
    """Between log-probabilities of the same choice, by the backend and by the network."""

    def __str__(self) -> str:
        ties = f", but for {self.near_ties} with scores so near each other that rounding decides" * bool(self.near_ties)
        return f"slates equal on {self.n_lists:,} random lists{ties}; log-probabilities to {self.largest_gap:.1g}"


class GivesSlates(Protocol):
    """Anything that gives slates with log-probabilities."""

    def slates(self, batch: Batch, k: int | None = None) -> tuple[IntArray, FloatArray]:
        """Return the best slates (B, K) of a batch, and the log-probability of each choice."""
        ...


class Slates(NamedTuple):
    """Slates, or one slate, with log-probabilities."""

    items: IntArray
    """(B, K) or (K,)"""
    logs: FloatArray
    """(B, K) or (K,)"""

    def of(self, number: int, length: int) -> Slates:
        """Return the slate of one list, (K,)."""
        return Slates(self.items[number, :length], self.logs[number, :length])


def compare(model: SlateModel, backend: GivesSlates, *, lengths: IntArray = LENGTHS, seed: int = 0) -> Parity:
    """Compare a backend with the network on random lists.

    Args:
        model: The network, as PyTorch and the C kernels run it.
        backend: What is to give the same slates.
        lengths: Of the random lists.
        seed: Draws them.

    Raises:
        DataError: A difference that is no rounding; the message names the list and the slot.
    """
    judge = Judge(model)
    near_ties, largest_gap = 0, 0.0
    for batch in track(list(random_batches(model.transform, lengths, seed)), "comparing"):
        decoded = model.decode(batch.lists)
        network = Slates(decoded.slates.numpy(), decoded.log_probabilities.numpy())
        found = Slates(*backend.slates(batch))
        differ = (found.items != network.items).any(axis=1)
        gaps = np.abs(found.logs - network.logs).max(axis=1)
        for number in np.flatnonzero(differ | ~(gaps <= LOG_TOLERANCE)).tolist():
            one = batch.lists[number]
            gaps[number] = judge.gap(one, found.of(number, one.n_items), network.of(number, one.n_items))
        near_ties += int(differ.sum())
        largest_gap = max(largest_gap, float(gaps.max()))
    return Parity(len(lengths), near_ties, largest_gap)


class Judge:
    """The network in float64, which is asked where float32 disagrees with itself."""

    def __init__(self, model: SlateModel) -> None:
        self._transform, self._network = model.transform, copy.deepcopy(model.network).double()

    def gap(self, one: ItemLists, found: Slates, network: Slates) -> float:
        """Return how far the log-probabilities found for a list are from those of float64.

        Raises:
            DataError: They are too far, or the slate is not as good as the best; the rounding error of the network
                itself on this list decides what is too far.
        """
        own_logs = choice_log_probabilities(*self._scored(one, network.items))[0].numpy()
        room = ROUNDINGS * float(np.abs(network.logs - own_logs).max())
        scores, slate = self._scored(one, found.items)
        short = (scores.amax(2) - scores.gather(2, slate.unsqueeze(2)).squeeze(2))[0].numpy()
        name = f"random list {one.list_ids[0].as_py()} of {one.n_items} items"
        if not (short <= TIE + room).all():
            slot = int((~(short <= TIE + room)).argmax())
            raise DataError(
                f"{name}, slot {slot}: item {found.items[slot]} is placed, whose score is {short[slot]:.2g} below the "
                f"best, which is no tie; the network's slate is {network.items.tolist()}"
            )
        gaps = np.abs(found.logs - choice_log_probabilities(scores, slate)[0].numpy())
        if not (gaps <= LOG_TOLERANCE + room).all():
            slot = int((~(gaps <= LOG_TOLERANCE + room)).argmax())
            raise DataError(
                f"{name}, slot {slot}: the log-probability is {found.logs[slot]:g} instead of the network's "
                f"{network.logs[slot]:g}"
            )
        return float(gaps.max())

    @torch.no_grad()
    def _scored(self, one: ItemLists, slate: IntArray) -> tuple[Tensor, Tensor]:
        """Return the scores (1, K, N) of a slate, and the slate as a tensor (1, K)."""
        slates, network = torch.from_numpy(slate)[None], self._network
        encoded = network.encode(InputLists.of(one, self._transform).batch().double())
        return network.decoder.score(encoded, slates), slates


# Random lists


def random_batches(transform: FeatureTransform, lengths: IntArray, seed: int) -> Iterator[Batch]:
    """Yield batches of random lists of these lengths."""
    rng = np.random.default_rng(seed)
    for start in range(0, len(lengths), _AT_ONCE):
        part = lengths[start : start + _AT_ONCE]
        yield _random_lists(transform, part, np.arange(start, start + len(part)), rng).batch()


def _random_lists(
    transform: FeatureTransform, lengths: IntArray, names: IntArray, rng: np.random.Generator
) -> ItemLists:
    """Return lists as the model might see them; every third has duplicates, every tenth nothing else."""
    offsets = offsets_from_lengths(lengths)
    rows = np.arange(offsets[-1])
    for name, first, stop in zip(names, offsets[:-1], offsets[1:], strict=True):
        if name % 10 == 0:
            rows[first:stop] = first
        elif name % 3 == 0:
            rows[first:stop] = rng.integers(first, stop, stop - first)
    numbers = _random_numbers(transform.context, len(lengths), rng)
    context = {name: numbers[:, column] for column, name in enumerate(transform.context.names)}
    texts = {name: _random_texts(known, len(lengths), rng) for name, known in transform.context_categorical.items()}
    return ItemLists(
        _random_numbers(transform.dense, len(rows), rng)[rows],
        offsets,
        list_ids=[str(name) for name in names],
        feature_names=transform.dense.names,
        categorical={name: _random_texts(known, len(rows), rng)[rows] for name, known in transform.categorical.items()},
        context=context | texts,
    )


def _random_numbers(columns: NumberColumns, n_rows: int, rng: np.random.Generator) -> FloatArray:
    """Return (rows, F) raw numbers twice as spread as those of the training; some are clipped, and some missing."""
    spread = rng.normal(scale=2, size=(n_rows, len(columns.names)))
    spread[rng.random(spread.shape) < 0.01] *= 10
    std = np.divide(1, columns.inverse_std, out=np.ones(len(columns.names)), where=columns.inverse_std > 0)
    values = columns.mean + spread * std
    if columns.scaling == "signed-log":
        values = np.sign(values) * np.expm1(np.minimum(np.abs(values), 80))  # e^80 is a float32
    if columns.missing == "impute":
        values[rng.random(values.shape) < 0.05] = np.nan
    return values.astype(np.float32)


def _random_texts(
    known: Vocabulary, n_rows: int, rng: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    """Return values of the vocabulary, missing ones and unknown ones."""
    choices = np.array([*known.values, None, "\0never seen"], dtype=object)
    return choices[rng.integers(0, len(choices), n_rows)]
