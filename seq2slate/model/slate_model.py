"""A network with the transform of its columns: lists in, slates of ids out, and a folder that holds all of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2slate.config import NetworkConfig
from seq2slate.data.features import FeatureTransform, Missing
from seq2slate.data.lists import Batch, IntArray, ItemLists
from seq2slate.errors import DataError, UsageError
from seq2slate.model.decoders import Decoded
from seq2slate.model.network import InputLists, InputSizes, NetworkInputs, SlateNetwork
from seq2slate.saving import SavedRanker, load_saved

KIND = "seq2slate"
"""The name of this kind of ranker in a saved folder."""


class SlateModel:
    """A network with the transform of its columns. It is a Ranker.

    >>> import numpy as np
    >>> lists = ItemLists(np.random.default_rng(0).normal(size=(9, 4)), [0, 4, 9])
    >>> model = SlateModel.create(lists, NetworkConfig(hidden=8), seed=0)
    >>> model.rank(lists.batch(), k=3).shape
    (2, 3)
    """

    def __init__(self, transform: FeatureTransform, network: SlateNetwork) -> None:
        self.transform = transform
        self.network = network.eval()

    @classmethod
    def create(
        cls,
        lists: ItemLists,
        config: NetworkConfig | None = None,
        *,
        seed: int = 0,
        categorical: Sequence[str] | None = None,
        context: Sequence[str] | None = None,
        missing: Missing = "impute",
    ) -> SlateModel:
        """Return an untrained model for lists with these columns.

        Args:
            lists: The transform is fitted to them.
            config: The shape of the network; the paper's if None.
            seed: Draws the first weights.
            categorical: Names of the categorical columns to use; all if None.
            context: Names of the context columns to use; all if None.
            missing: What happens to missing numbers.
        """
        transform = FeatureTransform.fit(lists, categorical=categorical, context=context, missing=missing)
        network = SlateNetwork(InputSizes.of(transform), config or NetworkConfig())
        network.reset_parameters(torch.Generator().manual_seed(seed))
        network.interaction.set_scale(transform.dense)
        return cls(transform, network)

    def to(self, device: str | torch.device) -> SlateModel:
        """Move the network to another device."""
        self.network.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.network.v.device

    # Ranking

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return the greedy slates (B, K) of a batch."""
        return self.decode(batch.lists, k).slates.cpu().numpy()

    @torch.no_grad()
    def decode(
        self,
        lists: ItemLists,
        k: int | None = None,
        *,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
    ) -> Decoded:
        """Return the slates of lists, taken as one batch, with the scores of every step.

        Args:
            lists: In base order.
            k: Slots of a slate; all items if None.
            generator: Samples the slates; None takes the best item at each step.
            temperature: Of the samples.
        """
        encoded = self.network.encode(self.inputs(lists))
        return self.network.decoder.decode(encoded, k, generator=generator, temperature=temperature)

    @torch.no_grad()
    def log_prob(self, lists: ItemLists, slates: IntArray) -> Tensor:
        """Return (Q, K) the log-probability of each choice of given slates (Q, K)."""
        given = torch.from_numpy(np.asarray(slates, dtype=np.int64)).to(self.device)
        return self.network.decoder.log_prob(self.network.encode(self.inputs(lists)), given)

    def inputs(self, lists: ItemLists) -> NetworkInputs:
        """Return what the network reads of these lists."""
        return InputLists.of(lists, self.transform).batch().to(self.device)

    # Saving

    def save(self, folder: str | os.PathLike[str], **about: Any) -> None:
        """Write the model to a folder of its own; `about`, which JSON can hold, goes into its configuration."""
        weights = {name: tensor.cpu().numpy() for name, tensor in self.network.state_dict().items()}
        config = {"network": asdict(self.network.config), **about}
        SavedRanker(KIND, config, weights, self.transform.to_json()).save(folder)

    @classmethod
    def from_saved(cls, saved: SavedRanker) -> SlateModel:
        """Build the model from what its folder holds."""
        for name, weights in saved.weights.items():
            if not np.isfinite(weights).all():
                raise DataError(f"the weights {name!r} of this model are not all finite: train it again")
        try:
            transform = FeatureTransform.from_json(saved.features)
            network = SlateNetwork(InputSizes.of(transform), NetworkConfig(**saved.config["network"]))
            tensors = {name: torch.from_numpy(array) for name, array in saved.weights.items()}
            network.load_state_dict({"strength": torch.ones(())} | tensors)
        except UsageError as error:
            raise DataError(f"{error}: train this model again, or open it with the version that wrote it") from error
        except (KeyError, TypeError, RuntimeError) as error:
            raise DataError(f"the files of this model do not belong together: {error}") from error
        return cls(transform, network)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> SlateModel:
        """Open the folder of a trained network."""
        return cls.from_saved(load_saved_network(folder))


def load_saved_network(folder: str | os.PathLike[str]) -> SavedRanker:
    """Return what the folder of a trained network holds.

    Raises:
        UsageError: The folder holds a ranker of another kind.
    """
    saved = load_saved(folder)
    if saved.kind != KIND:
        raise UsageError(f"{folder} holds a {saved.kind!r} ranker, and only a network can be served or exported")
    return saved
