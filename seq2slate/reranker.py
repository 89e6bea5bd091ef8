"""The estimator around the network: labelled lists in, a re-ranker that places items one by one out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import torch

from seq2slate.config import Configuration, NetworkConfig, TrainingConfig, check_names, configure
from seq2slate.data.inputs import as_lists
from seq2slate.data.lists import Batch, IntArray, ItemLists
from seq2slate.data.ranker import check_slots
from seq2slate.data.roles import Columns
from seq2slate.estimator import Estimator, Slate, as_tuples
from seq2slate.model.slate_model import KIND, SlateModel
from seq2slate.options import convert_options
from seq2slate.progress import track
from seq2slate.saving import SavedRanker
from seq2slate.training.callbacks import Callback, EpochFunction
from seq2slate.training.fit import History, run_identity, run_training


@dataclass(eq=False, init=False, repr=False)
class Reranker(Estimator):
    """A pointer network that re-ranks whole slates, and the transform of its columns.

    Beside its own options it takes any field of `NetworkConfig` and `TrainingConfig`, in place of the preset's.

    >>> from seq2slate import click_model, make_synthetic_lists, simulate_clicks
    >>> lists = make_synthetic_lists(60, items=8, world="topics", features=5, seed=1)
    >>> log = simulate_clicks(click_model("diverse"), lists, seed=1)
    >>> model = Reranker(preset="paper", hidden=8, epochs=1).fit(log, quiet=True)
    >>> model.predict(log[:1]).min()  # 1 is the top slot
    np.int64(1)
    >>> model
    Reranker(preset='paper', hidden=8, epochs=1)

    """

    preset: str = "default"
    """The name of a preset: where the options of network and training start from."""
    device: str = "cpu"
    """Where the network is trained and run, such as `cpu` or `cuda`."""

    model_: SlateModel = field(init=False)
    """Network and feature transform."""
    history_: History = field(init=False)
    """Loss and validation measure of every epoch."""

    kind = KIND
    local_options = ("device",)

    def __init__(
        self,
        preset: str = "default",
        *,
        device: str = "cpu",
        seed: int = 0,
        columns: Columns | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        check_names(options)
        self.preset, self.device, self.seed, self.columns, self.options = preset, device, seed, columns, options

    @property
    def config(self) -> Configuration:
        """The configuration of network and training that preset and options come to."""
        return configure(self.preset, seed=self.seed, **self.options)

    @property
    def name(self) -> str:
        """What a table of results calls it."""
        return f"{self.kind} ({self.preset})"

    def fit(
        self,
        train: Any,
        valid: Any | None = None,
        *,
        group: Any | None = None,
        checkpoints: str | os.PathLike[str] | None = None,
        resume: bool = False,
        callbacks: Sequence[Callback | EpochFunction] | EpochFunction = (),
        quiet: bool = False,
    ) -> Self:
        """Train on labelled lists in base order; the epoch that is best on the validation lists is kept.

        Args:
            train: Training lists, with clicks or grades as labels.
            valid: The lists that choose the epoch; a tenth of `train`, drawn with the option `seed`, if None.
            group: As in LightGBM, `fit(X, y, group=group)` is `fit((X, y, group))`.
            checkpoints: Folder for checkpoints, from which a run can be resumed; it stays when the run has ended.
            resume: Go on from the newest checkpoint, or begin anew if there is none that can be read.
            callbacks: Functions of an `EpochReport`, called after every epoch, or `Callback` objects such as
                `TensorBoardCallback`. One that returns True ends the run.
            quiet: Print nothing.

        Returns:
            The re-ranker itself.

        """
        train_lists, valid_lists = self._training_lists(train, valid, group=group, quiet=quiet)
        model = self._untrained(train_lists)
        self.history_ = run_training(
            model,
            train_lists,
            valid_lists,
            self.config.training,
            checkpoints=None if checkpoints is None else Path(checkpoints),
            resume=resume,
            callbacks=callbacks,
            quiet=quiet,
        )
        self.model_, self.transform_ = model, model.transform
        self._pin_columns()
        return self

    def run_id(self, train: Any, valid: Any | None = None) -> str:
        """Return the identity of the run that `fit` makes of these lists: `history_.run_id` of a model that it made."""
        other = Reranker(**self.get_params())  # what this one has learned stays
        train_lists, valid_lists = other._training_lists(train, valid, group=None, quiet=True)
        return run_identity(other._untrained(train_lists), train_lists, valid_lists, other.config.training)

    def _untrained(self, train: ItemLists) -> SlateModel:
        network, training = self.config
        return SlateModel.create(train, network, seed=training.seed, missing=training.missing).to(self.device)

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        """Return the greedy slates (B, K) of a batch."""
        return self.model_.rank(batch, k)

    def rerank(
        self,
        data: Any,
        k: int | None = None,
        *,
        sample_seed: int | None = None,
        temperature: float = 1.0,
        batch_size: int = 256,
    ) -> list[Slate]:
        """Return a slate for every list, in their order, with the log-probability of each choice.

        Args:
            data: Lists in base order.
            k: Slots of a slate; all items if None.
            sample_seed: Draw slates from the softmax instead of the best ones, with this seed. A sampled slate depends
                on the seed, the list and the lists that share its batch.
            temperature: Above 1 sampling is closer to uniform, below 1 closer to greedy.
            batch_size: Lists that are decoded at once.

        """
        lists, n_slots = as_lists(data, self.columns_, name="data", labelled=False), check_slots(k)
        list_ids, item_ids = lists.original_list_ids().to_pylist(), lists.original_item_ids()
        generator = None if sample_seed is None else torch.Generator().manual_seed(sample_seed)
        slates: list[Slate | None] = [None] * len(lists)
        for batch in track(list(lists.batches(batch_size)), "re-ranking"):
            decoded = self.model_.decode(batch.lists, n_slots, generator=generator, temperature=temperature)
            placed, logs = decoded.slates.cpu().numpy(), decoded.log_probabilities.cpu().numpy()
            for row, number in enumerate(batch.index):
                items = lists.offsets[number] + placed[row][placed[row] >= 0]
                ids = item_ids.take(pa.array(items)).to_pylist()
                slates[number] = Slate(list_ids[number], ids, logs[row, : len(ids)].tolist())
        return [slate for slate in slates if slate is not None]

    def _convert_options(self) -> None:
        super()._convert_options()
        self.options = convert_options(self.options, NetworkConfig, TrainingConfig)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return its own options, and those of network and training that were given."""
        return super().get_params() | self.options

    def set_params(self, **options: Any) -> Self:
        """Change options, all of them or none; what was learned stays as it is until the next `fit`.

        Raises:
            UsageError: There is no such option, or it cannot have this value.

        """
        changed = Reranker(**{**self.get_params(), **options})
        changed.config  # noqa: B018 (checks the names and values)
        vars(self).update(vars(changed))
        return self

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the re-ranker to a folder of its own, which appears whole or not at all."""
        self.model_.save(
            folder,
            options=self._saved_options(),
            columns=self.columns_.to_dict(),
            training=asdict(self.config.training),
            history=asdict(self.history_),
        )

    @classmethod
    def from_saved(cls, saved: SavedRanker) -> Self:
        """Build the re-ranker from what its folder holds."""
        model = SlateModel.from_saved(saved)
        reranker = cls(**as_tuples(saved.config.get("options", {})))
        reranker.model_ = model
        reranker.transform_ = reranker.model_.transform
        reranker.columns_ = Columns.from_dict(saved.config.get("columns", {}))
        if "history" in saved.config:
            reranker.history_ = History(**saved.config["history"])
        return reranker
