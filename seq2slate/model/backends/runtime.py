"""A trained model, ready for one request after another: the raw columns of a list in, its slate out.

The usual path from lists to slates is made for batches; for a single list most of its time is overhead. Here everything
that does not depend on the request is done beforehand, and a network of two LSTM layers, which is what the presets
`paper` and `default` make, runs in one call to C (`model.list_placer`). All others take the usual path.

The slates are those of `SlateModel.decode`, but where scores are so near each other that rounding decides, and so are
the log-probabilities of the best slate. A slate that is drawn comes with the log-propensities of the draw, at the
temperature it was drawn with: what a log must keep.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from seq2slate.data.features import EncodedLists
from seq2slate.data.lists import Batch, FloatArray, IntArray
from seq2slate.data.ranker import empty_slates
from seq2slate.errors import UsageError
from seq2slate.model.backends.list_placer import ListPlacer, NotFiniteError, list_placer
from seq2slate.model.decoding import check_options, choice_log_probabilities, decode, score_slates
from seq2slate.model.inputs import InputLists
from seq2slate.model.slate_model import KIND, SlateModel
from seq2slate.saving import load_saved

_FEW_ITEMS = 32  # all of them are placed in a millisecond at most


class Runtime:
    """A model for one list at a time, from any number of threads at once. It is a Ranker, too.

    >>> from seq2slate import ItemLists, NetworkConfig
    >>> features = np.random.default_rng(0).normal(size=(9, 4))
    >>> runtime = Runtime(SlateModel.create(ItemLists(features, [0, 9]), NetworkConfig(hidden=8)))
    >>> slate, log_probabilities = runtime.slate(features[:5], k=3)
    >>> slate.shape, bool((log_probabilities < 0).all())
    ((3,), True)
    """

    def __init__(self, model: SlateModel) -> None:
        """Take the weights as they are now; what happens to the model later changes nothing here."""
        self.transform = model.transform
        self._network = copy.deepcopy(model.network).cpu().eval()
        self._placer = list_placer(self._network, self.transform.dense)
        n_numbers = len(self.transform.dense.names)
        # Not so if base positions are an input.
        self._reads_numbers_only = self.transform.reads_numbers_only and self._network.n_inputs == n_numbers

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Runtime:
        """Open the folder of a trained model."""
        saved = load_saved(folder)
        if saved.kind != KIND:
            raise UsageError(f"{folder} holds a {saved.kind!r} ranker, and only a network can be served this way")
        return cls(SlateModel.from_saved(saved))

    def slate(
        self,
        features: npt.ArrayLike,
        k: int | None = None,
        *,
        categorical: Mapping[str, Sequence[str | None]] | None = None,
        context: Mapping[str, str | float | None] | None = None,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
    ) -> tuple[IntArray, FloatArray]:
        """Return the slate of one list, as positions in it, and the log-probability of each choice.

        features (n, F) are raw, in base order; text columns have n values, and context columns one. With a generator
        the slate is drawn, and its log-probabilities are those of the draw.
        """
        if self._placer is None or not self._reads_numbers_only or context:
            encoded = self.transform.apply_arrays(features, categorical, context)
            return self._slate(encoded, k, generator, temperature)
        rows = np.ascontiguousarray(self.transform.as_rows(features))
        try:
            return self._placed(self._placer, rows, k, generator, temperature, is_raw=True)
        except NotFiniteError:
            self.transform.apply_arrays(rows)  # which says where it is, if it is in the features
            raise

    @torch.no_grad()
    def step_probabilities(
        self,
        features: npt.ArrayLike,
        slate: Sequence[int],
        *,
        categorical: Mapping[str, Sequence[str | None]] | None = None,
        context: Mapping[str, str | float | None] | None = None,
        temperature: float = 1.0,
    ) -> FloatArray:
        """Return (K, n) how probable every item was at every step of a slate, given the items placed before."""
        encoded = self.transform.apply_arrays(features, categorical, context)
        inputs = InputLists(encoded, np.array([len(encoded.dense)])).batch()
        scores = score_slates(self._network, self._network.encode(inputs), torch.tensor([list(slate)]))
        probabilities: FloatArray = (scores[0] / temperature).softmax(1).numpy()
        return probabilities

    def is_quick(self, n_items: int) -> bool:
        """Say whether a slate takes hardly longer than to hand it to another thread: a call to C, for few items."""
        return self._placer is not None and n_items <= _FEW_ITEMS

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return the best slates (B, K) of a batch, one list after the other."""
        encoded, offsets = self.transform.apply(batch.lists), batch.lists.offsets
        slates = empty_slates(batch.lists.lengths, k)
        for number in range(len(batch)):
            placed, _ = self._slate(_one_list(encoded, offsets, number), k, None, 1.0)
            slates[number, : len(placed)] = placed
        return slates

    def _slate(
        self, encoded: EncodedLists, k: int | None, generator: torch.Generator | None, temperature: float
    ) -> tuple[IntArray, FloatArray]:
        if self._placer is None:
            return self._decoded(encoded, k, generator, temperature)
        return self._placed(self._placer, self._item_vectors(encoded), k, generator, temperature, is_raw=False)

    @staticmethod
    def _placed(
        placer: ListPlacer,
        items: FloatArray,
        k: int | None,
        generator: torch.Generator | None,
        temperature: float,
        *,
        is_raw: bool,
    ) -> tuple[IntArray, FloatArray]:
        check_options(k, temperature)
        steps = len(items) if k is None else min(k, len(items))
        if generator is None:
            return placer.place(items, steps, is_raw=is_raw)
        draws = torch.rand(1, steps, generator=generator, device=generator.device, dtype=torch.float32)[0].cpu().numpy()
        return placer.place(items, steps, is_raw=is_raw, draws=draws, sharpness=1 / temperature)

    @torch.no_grad()
    def _decoded(
        self, encoded: EncodedLists, k: int | None, generator: torch.Generator | None, temperature: float
    ) -> tuple[IntArray, FloatArray]:
        """Take the path that every network can take."""
        inputs = InputLists(encoded, np.array([len(encoded.dense)])).batch()
        decoded = decode(self._network, self._network.encode(inputs), k, generator=generator, temperature=temperature)
        scores = decoded.scores if generator is None else decoded.scores / temperature
        return decoded.slates[0].numpy(), choice_log_probabilities(scores, decoded.slates)[0].numpy()

    def _item_vectors(self, encoded: EncodedLists) -> FloatArray:
        """Return (n, I) what the network reads of each item."""
        if encoded.dense.shape[1] == self._network.n_inputs:  # nothing but numbers
            return np.ascontiguousarray(encoded.dense)
        inputs = InputLists(encoded, np.array([len(encoded.dense)])).batch()
        with torch.no_grad():
            return np.ascontiguousarray(self._network.item_vectors(inputs)[:, 0].numpy())


def _one_list(encoded: EncodedLists, offsets: IntArray, number: int) -> EncodedLists:
    rows, only = slice(offsets[number], offsets[number + 1]), slice(number, number + 1)
    return EncodedLists(
        encoded.dense[rows],
        {name: codes[rows] for name, codes in encoded.categorical.items()},
        encoded.context[only],
        {name: codes[only] for name, codes in encoded.context_categorical.items()},
    )
