"""What the network reads: the encoded columns of some lists as padded tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seq2slate.data.features import EncodedLists, FeatureTransform
from seq2slate.data.lists import BoolArray, IntArray, ItemLists, offsets_from_lengths


@dataclass(frozen=True)
class InputSizes:
    """How many columns of each kind a network reads; saved with it."""

    dense: int
    categorical: dict[str, int]
    """Number of codes, slot 0 included, of each categorical column of the items."""
    context: int
    context_categorical: dict[str, int]
    """The same for the categorical columns of the lists."""

    @classmethod
    def of(cls, transform: FeatureTransform) -> InputSizes:
        """Return the sizes of what a fitted transform gives."""
        return cls(
            len(transform.dense.names),
            {name: vocabulary.n_codes for name, vocabulary in transform.categorical.items()},
            len(transform.context.names),
            {name: vocabulary.n_codes for name, vocabulary in transform.context_categorical.items()},
        )


@dataclass(frozen=True)
class NetworkInputs:
    """B lists of at most N items, as tensors. Columns of items are time-major: a step of the encoder is one block."""

    dense: Tensor
    """(N, B, F)"""
    categorical: dict[str, Tensor]
    """(N, B) codes"""
    context: Tensor
    """(B, C)"""
    context_categorical: dict[str, Tensor]
    """(B,) codes"""
    mask: Tensor
    """(B, N) True for a real item"""

    def to(self, device: torch.device | str) -> NetworkInputs:
        """Return the same on another device."""
        return NetworkInputs(
            self.dense.to(device),
            {name: codes.to(device) for name, codes in self.categorical.items()},
            self.context.to(device),
            {name: codes.to(device) for name, codes in self.context_categorical.items()},
            self.mask.to(device),
        )

    def double(self) -> NetworkInputs:
        """Return the same in float64."""
        return replace(self, dense=self.dense.double(), context=self.context.double())


class InputLists:
    """Lists, encoded once, from which batches of inputs are cut."""

    def __init__(self, encoded: EncodedLists, lengths: IntArray) -> None:
        self.encoded = encoded
        self.lengths = lengths
        self.offsets = offsets_from_lengths(lengths)

    @classmethod
    def of(cls, lists: ItemLists, transform: FeatureTransform) -> InputLists:
        """Encode lists with the transform of the model."""
        return cls(transform.apply(lists), lists.lengths)

    def batch(self, index: IntArray | None = None) -> NetworkInputs:
        """Return the given lists (all if none are named) as padded tensors."""
        chosen = np.arange(len(self.lengths)) if index is None else index
        rows, mask = self._rows(chosen)
        encoded = self.encoded
        return NetworkInputs(
            torch.from_numpy(_padded(encoded.dense, rows, mask)),
            {name: torch.from_numpy(_padded(codes, rows, mask)).long() for name, codes in encoded.categorical.items()},
            torch.from_numpy(encoded.context[chosen]),
            {name: torch.from_numpy(codes[chosen]).long() for name, codes in encoded.context_categorical.items()},
            torch.from_numpy(mask),
        )

    def pad(self, values: npt.NDArray[np.float32], index: IntArray) -> Tensor:
        """Return values (T,) of the items as (B, N), 0 where there is none."""
        rows, mask = self._rows(index)
        return torch.from_numpy(np.ascontiguousarray(_padded(values, rows, mask).T))

    def _rows(self, index: IntArray) -> tuple[IntArray, BoolArray]:
        """Return the row (B, N) of every item and whether it is real; padding points at some row of the data."""
        lengths = self.lengths[index]
        positions = np.arange(int(lengths.max(initial=0)))
        mask = positions < lengths[:, None]
        return np.where(mask, self.offsets[index][:, None] + positions, 0), mask


def _padded(values: npt.NDArray[np.generic], rows: IntArray, mask: BoolArray) -> npt.NDArray[np.generic]:
    """Return values[rows] time-major, (N, B, …), with 0 in place of padding."""
    if not rows.size:
        return np.zeros((rows.shape[1], rows.shape[0], *values.shape[1:]), values.dtype)
    padded = values[rows.T]
    padded[~mask.T] = 0
    return padded
