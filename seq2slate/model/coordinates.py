"""Coordinates of pairs of items that are kept: they are data, and training reads the same lists in every epoch.

Training takes them in 16 bits, and so does a list that was not kept: what a run computes does not depend on how much it
keeps, or on where it was resumed. Validation takes them as they are, so that a model is judged as it will be served.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from seq2slate.data.lists import IntArray
from seq2slate.model.backends.pairs import in_16_bits
from seq2slate.model.interactions import Interaction

MOST_BYTES = 1 << 30
"""That the coordinates of some lists may take. Those of further lists are computed whenever they are needed."""


class KnownCoordinates:
    """The coordinates of the pairs of some lists, computed when a list is first read.

    Args:
        interaction: Computes them.
        rounded: Whether they are kept, and given, in 16 bits.
        most_bytes: How much is kept.
    """

    def __init__(self, interaction: Interaction, *, rounded: bool, most_bytes: int = MOST_BYTES) -> None:
        self._interaction, self._rounded = interaction, rounded
        self._kept: dict[int, npt.NDArray[Any]] = {}
        self._bytes_left = most_bytes

    def batch(self, index: IntArray, dense: Tensor, lengths: IntArray) -> Tensor | None:
        """Return (B, 3, P) the coordinates of lists with these numbers, scaled columns (N, B, F) and lengths.

        None if the interaction has none.
        """
        new = np.array([place for place, number in enumerate(index.tolist()) if number not in self._kept], dtype=int)
        found = self._computed(dense if len(new) == len(index) else dense[:, new], lengths[new]) if len(new) else None
        if found is not None:
            for number, pairs, own in zip(index[new].tolist(), _n_pairs(lengths[new]), found.numpy(), strict=True):
                self._keep(number, own[:, :pairs])
            if len(new) == len(index):
                return found
        return self._padded(index, lengths, new, found)

    def _computed(self, dense: Tensor, lengths: IntArray) -> Tensor | None:
        device = next((buffer.device for buffer in self._interaction.buffers()), dense.device)
        found = self._interaction.coordinates_of(dense.to(device), torch.from_numpy(lengths).to(device))
        if found is None:
            return None
        return (in_16_bits(found) if self._rounded else found).cpu()

    def _keep(self, number: int, coordinates: npt.NDArray[Any]) -> None:
        if coordinates.nbytes <= self._bytes_left:
            self._bytes_left -= coordinates.nbytes
            self._kept[number] = coordinates.copy()

    def _padded(self, index: IntArray, lengths: IntArray, new: IntArray, found: Tensor | None) -> Tensor | None:
        """Return what is known of all lists, and found for the new ones; None if that is nothing."""
        pairs = _n_pairs(lengths)
        rows = {place: self._kept.get(number) for place, number in enumerate(index.tolist())}
        if found is not None:
            rows |= dict(zip(new.tolist(), found.numpy(), strict=True))
        example = next((row for row in rows.values() if row is not None), None)
        if example is None or not max(pairs):
            return None
        out = np.zeros((len(index), len(example), max(pairs)), example.dtype)
        for place, row in rows.items():
            if row is not None:
                out[place, :, : pairs[place]] = row[:, : pairs[place]]
        return torch.from_numpy(out)


def _n_pairs(lengths: IntArray) -> list[int]:
    return [length * (length - 1) // 2 for length in lengths.tolist()]
