"""The network: what is computed from the items of a list is said here, once; backends are ways to compute it.

An item is a vector x_i: its dense columns and the indicators of their missing values, the embeddings of its categorical
columns, the columns of its list, and with `position_input` the logarithm log(1 + i) of its base position i = 0, 1, ….
Items come in base order (paper, section 2).

    memory        e_0 … e_{n-1} and h_0 = encoder(x_0 … x_{n-1}); h_0 is the decoder's first state     `model.encoders`
    decoder       h_j = cell(y_j, h_{j-1}) with output d_j; y_1 = go, then y_j = x_{π_{j-1}}, the item just placed
    score         s_i^j = v^T tanh(W_enc e_i + W_dec d_j)                                               `model.layers`
                          + b_i + Σ_{m<j} a_{π_m i}, the pairwise interaction                      `model.interactions`
    strength      s_i^j becomes τ s_i^j - (1 - τ) log(1 + i): 1 is the network, and 0 the base order
    probability   p(π_j = i | π_<j) = softmax of s_i^j / T over the items i that are left              `model.decoders`

The one-step decoder takes the scores s_i^1 for all steps. Options beyond the paper, all off unless asked for:

- `base_prior`: a learned bias for each base position (the same from position 63 on), so that a fresh network begins at
  the base order and learns corrections. It starts at -log(1 + i). Without an interaction b_i is this prior.
- `interaction`: b_i and a_ki compare an item with those above it in base order and those placed before it.
- `encoder="attention"`: self-attention takes the place of the recurrent encoder.
- `memory_span`: units of an LSTM start with memories of different length; nothing is computed otherwise.

The numbers that all backends share have names and are defined once: `layers.LIMIT`, `PRIOR_POSITIONS` here,
`encoders.LAST_POSITION`, and those of `interactions`.

Dropout, in training, takes columns of x, units of e and units of d, each for a whole list: drawing slates and scoring
them then speak of one policy. The interaction sees no dropout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from seq2slate.config import NetworkConfig
from seq2slate.data.features import EncodedLists, FeatureTransform
from seq2slate.data.lists import IntArray, ItemLists, Padding, offsets_from_lengths
from seq2slate.errors import UsageError
from seq2slate.model.backends.kernels import LstmEncoder, kernels_for
from seq2slate.model.backends.pairs import PlacedPairs, in_16_bits
from seq2slate.model.decoders import DECODERS, Encoded
from seq2slate.model.encoders import ENCODERS
from seq2slate.model.interactions import INTERACTIONS, PARAM_SCALE, ClickLikelihood, Interaction, ScoreTerms
from seq2slate.model.layers import LIMIT, Keys, LstmLayer, State

PRIOR_POSITIONS = 64
"""Base positions with a prior of their own; the last is that of all positions after it, too."""
MOST_BYTES = 1 << 30
"""That coordinates of pairs of some lists may take. Those of further lists are computed whenever they are needed."""


# What the network reads


@dataclass(frozen=True)
class InputSizes:
    """How many columns of each kind a network reads; saved with it."""

    dense: int
    """Numeric columns of the items, and their indicators of missing values."""
    categorical: dict[str, int]
    """Number of codes, slot 0 included, of each categorical column of the items."""
    context: int
    """The same for the numeric columns of the lists."""
    context_categorical: dict[str, int]
    """The same for the categorical columns of the lists."""

    @classmethod
    def of(cls, transform: FeatureTransform) -> InputSizes:
        """Return the sizes of what a fitted transform gives."""
        return cls(
            transform.dense.n_outputs,
            {name: vocabulary.n_codes for name, vocabulary in transform.categorical.items()},
            transform.context.n_outputs,
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
    coordinates: Tensor | None = None
    """(B, 3, P) of the pairs of items, for an interaction that reads them, where they are known"""

    def to(self, device: torch.device | str) -> NetworkInputs:
        """Return the same on another device."""
        return NetworkInputs(
            self.dense.to(device),
            {name: codes.to(device) for name, codes in self.categorical.items()},
            self.context.to(device),
            {name: codes.to(device) for name, codes in self.context_categorical.items()},
            self.mask.to(device),
            None if self.coordinates is None else self.coordinates.to(device),
        )

    def double(self) -> NetworkInputs:
        """Return the same in float64; what is known of pairs is rounded to float32, and so is left out."""
        return replace(self, dense=self.dense.double(), context=self.context.double(), coordinates=None)


class KnownCoordinates:
    """The coordinates of the pairs of some lists, computed when a list is first read and kept: they are data.

    Training takes them in 16 bits, and so does a list that was not kept: what a run computes does not depend on how
    much it keeps, or on where it was resumed. Validation takes them as they are, so that a model is judged as it will
    be served.

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


class InputLists:
    """Lists, encoded once, from which batches of inputs are cut."""

    def __init__(self, encoded: EncodedLists, lengths: IntArray) -> None:
        self.encoded = encoded
        self.lengths = lengths
        self.offsets = offsets_from_lengths(lengths)
        self.coordinates: KnownCoordinates | None = None
        """What is known of the pairs of items, for networks that go through the same lists again and again."""

    @classmethod
    def of(cls, lists: ItemLists, transform: FeatureTransform) -> InputLists:
        """Encode lists with the transform of the model."""
        return cls(transform.apply(lists), lists.lengths)

    def batch(self, index: IntArray | None = None) -> NetworkInputs:
        """Return the given lists (all if none are named) as padded tensors."""
        chosen = np.arange(len(self.lengths)) if index is None else index
        padding, encoded = Padding.of(self.offsets, chosen), self.encoded
        dense = torch.from_numpy(padding.pad(encoded.dense, time_major=True))
        codes = {name: padding.pad(column, time_major=True) for name, column in encoded.categorical.items()}
        return NetworkInputs(
            dense,
            {name: torch.from_numpy(column).long() for name, column in codes.items()},
            torch.from_numpy(encoded.context[chosen]),
            {name: torch.from_numpy(column[chosen]).long() for name, column in encoded.context_categorical.items()},
            torch.from_numpy(padding.mask),
            None if self.coordinates is None else self.coordinates.batch(chosen, dense, self.lengths[chosen]),
        )

    def pad(self, values: npt.NDArray[np.float32], index: IntArray) -> Tensor:
        """Return values (T,) of the items as (B, N), 0 where there is none."""
        return torch.from_numpy(Padding.of(self.offsets, index).pad(values))


# The network


class SlateNetwork(nn.Module):
    """The pointer network over encoded columns.

    Args:
        sizes: The columns that it reads.
        config: Its shape.
    """

    strength: Tensor
    """() τ: 1 is the network, and 0 the base order."""

    def __init__(self, sizes: InputSizes, config: NetworkConfig) -> None:
        super().__init__()
        self.sizes, self.config = sizes, config
        self.embeddings = _embeddings(sizes.categorical, config.embedding)
        self.context_embeddings = _embeddings(sizes.context_categorical, config.embedding)
        embedded = sum(table.embedding_dim for table in [*self.embeddings, *self.context_embeddings])
        n_inputs = sizes.dense + sizes.context + embedded + config.position_input
        if n_inputs == 0:
            raise UsageError("there is no column to learn from: give features, or name categorical or context columns")
        self.n_inputs = n_inputs
        self.encoder = ENCODERS[config.encoder](n_inputs, config)
        self.decoder = DECODERS[config.decoder](n_inputs, self.encoder.decoder_layers, config)
        self.go = nn.Parameter(torch.empty(n_inputs))
        self.w_enc = nn.Parameter(torch.empty(config.hidden, config.hidden))
        self.w_dec = nn.Parameter(torch.empty(config.hidden, config.hidden))
        self.v = nn.Parameter(torch.empty(config.hidden))
        self.prior = nn.Parameter(torch.empty(PRIOR_POSITIONS)) if config.base_prior else None
        self.interaction = INTERACTIONS[config.interaction](n_inputs, sizes.dense)
        self.register_buffer("strength", torch.ones(()))

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw all weights uniformly from ±initial_range; the base prior starts at the base order.

        Encoders and interactions may start otherwise, and so do the gates of an LSTM with a `memory_span`.
        """
        initial_range = self.config.initial_range
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-initial_range, initial_range, generator=generator)
            self.encoder.reset_parameters(generator, initial_range)
            if self.config.memory_span is not None:
                for module in self.modules():
                    if isinstance(module, LstmLayer):
                        module.spread_memory(self.config.memory_span)
            if self.prior is not None:
                self.prior.copy_(-torch.log1p(torch.arange(PRIOR_POSITIONS)) / PARAM_SCALE)
            self.interaction.reset_parameters(generator)
            if self.interaction.has_click_model:
                self.v.zero_()

    @property
    def input_weights(self) -> Tensor:
        """(I, W) the weights of encoder and decoder that multiply each input column."""
        return torch.cat([self.encoder.input_weights, self.decoder.recurrent_layers[0].input_weights], dim=1)

    def encode(self, inputs: NetworkInputs, *, generator: torch.Generator | None = None) -> Encoded:
        """Read the lists. In training mode the generator draws the dropout."""
        mask, drop = inputs.mask, partial(self._dropped, generator=generator)
        vectors = self.item_vectors(inputs)
        items = drop(vectors)
        fused, keep = self._encoded_in_c(items, mask), None
        if fused is not None:
            keys, states = fused
        else:
            memory, states = self.encoder(items, mask, drop)
            keys = Keys.of(drop(memory).transpose(0, 1) @ self.w_enc)
            keep = self._keep(memory, generator)
        terms = self.interaction(vectors, mask, self._prior(mask), **_known_pairs(inputs))
        if self.strength == 1:
            return Encoded(items, mask, keys, states, terms, self.go, self.w_dec, self.v, keep)
        terms, v = self._mixed_with_base_order(terms, mask), self.strength * self.v
        return Encoded(items, mask, keys, states, terms, self.go, self.w_dec, v, keep)

    def click_likelihood(self, inputs: NetworkInputs) -> ClickLikelihood:
        """Return the click model of the lists, without the rest of the network."""
        prior = self._prior(inputs.mask)
        return self.interaction.click_likelihood(self.item_vectors(inputs), inputs.mask, prior, **_known_pairs(inputs))

    def click_model_parameters(self) -> list[nn.Parameter]:
        """Return what the click model learns: its own weights, the base prior and the embeddings; none without one."""
        if not self.interaction.has_click_model:
            return []
        own = [one for one in self.interaction.parameters() if one.requires_grad]
        return [*own, *([] if self.prior is None else [self.prior]), *self.embedding_tables()]

    def embedding_tables(self) -> list[nn.Parameter]:
        """Return the embeddings of all categorical columns."""
        return [*self.embeddings.parameters(), *self.context_embeddings.parameters()]

    def _mixed_with_base_order(self, terms: ScoreTerms, mask: Tensor) -> ScoreTerms:
        """Return τ times the terms, and (1 - τ) times scores that give the base order."""
        base = -torch.log1p(torch.arange(mask.shape[1], device=mask.device, dtype=self.v.dtype))
        bias, added = ((1 - self.strength) * base).expand(mask.shape), terms.added
        if terms.bias is not None:
            bias = bias + self.strength * terms.bias
        if isinstance(added, PlacedPairs):
            return ScoreTerms(bias, replace(added, weight=float(self.strength) * added.weight), terms.clicks)
        return ScoreTerms(bias, None if added is None else self.strength * added, terms.clicks)

    def item_vectors(self, inputs: NetworkInputs) -> Tensor:
        """Return (N, B, I): dense columns, embeddings, columns of the list and the position, side by side."""
        sizes, (n_items, n_lists) = self.sizes, inputs.dense.shape[:2]
        columns = [inputs.dense]
        columns += [
            table(inputs.categorical[name]) for name, table in zip(sizes.categorical, self.embeddings, strict=True)
        ]
        of_lists = [inputs.context]
        of_lists += [
            table(inputs.context_categorical[name])
            for name, table in zip(sizes.context_categorical, self.context_embeddings, strict=True)
        ]
        columns += [column.expand(n_items, -1, -1) for column in of_lists if column.shape[1]]
        if self.config.position_input:
            position = torch.log1p(torch.arange(n_items, device=inputs.dense.device, dtype=inputs.dense.dtype))
            columns.append(position[:, None, None].expand(-1, n_lists, 1))
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=2)

    def _encoded_in_c(self, items: Tensor, mask: Tensor) -> tuple[Keys, list[State]] | None:
        """Return what the encoder and W_enc make of items (N, B, I), in one loop in C.

        None if the encoder is not a single LSTM, or a gradient or dropout is wanted.
        """
        lstm, fused = self.encoder.lstm, kernels_for(items).fused
        if lstm is None or fused is None or self._drops or torch.is_grad_enabled():
            return None
        n_items, n_lists = items.shape[:2]
        factors = items.new_empty(n_lists, n_items, self.config.hidden)
        h, c = (items.new_zeros(n_lists, self.config.hidden) for _ in range(2))
        last = (mask.sum(1) - 1).clamp(min=0)
        fused.lstm_encode(LstmEncoder(lstm, items.contiguous(), last, self.w_enc.detach(), LIMIT), factors, h, c)
        return Keys(factors, None), [(h, c)]

    def _prior(self, mask: Tensor) -> Tensor | None:
        """Return (B, N) the prior of each base position, if there is one."""
        if self.prior is None:
            return None
        positions = torch.arange(mask.shape[1], device=mask.device).clamp(max=PRIOR_POSITIONS - 1)
        return (self.prior * PARAM_SCALE)[positions].expand(mask.shape[0], -1)

    # Dropout

    @property
    def _drops(self) -> bool:
        return self.training and self.config.dropout > 0

    def _keep(self, values: Tensor, generator: torch.Generator | None) -> Tensor | None:
        """Return (B, width): 0 for units of values (N, B, width) that a list drops, and 1 / (1 - p) for the others.

        None when nothing is dropped.
        """
        if not self._drops:
            return None
        keep = torch.rand(values.shape[1:], generator=generator, device=values.device) >= self.config.dropout
        return keep.to(values.dtype) / (1 - self.config.dropout)

    def _dropped(self, values: Tensor, generator: torch.Generator | None) -> Tensor:
        keep = self._keep(values, generator)
        return values if keep is None else values * keep


def _known_pairs(inputs: NetworkInputs) -> dict[str, Tensor]:
    """Return what is known of the pairs of items, as arguments of the interaction."""
    return {} if inputs.coordinates is None else {"coordinates": inputs.coordinates}


def _embeddings(sizes: dict[str, int], largest: int) -> nn.ModuleList:
    """Return a table for each categorical column, in order; a column of c codes needs no more than c dimensions."""
    return nn.ModuleList(nn.Embedding(codes, min(largest, codes)) for codes in sizes.values())


def _n_pairs(lengths: IntArray) -> list[int]:
    return [length * (length - 1) // 2 for length in lengths.tolist()]
