"""Models of every shape, and lists for them, for the tests of what runs outside of training."""

from typing import Any

import numpy as np

from seq2slate import Columns
from seq2slate.data.lists import ItemLists, offsets_from_lengths
from seq2slate.model.slate_model import SlateModel
from seq2slate.reranker import Reranker
from tests.reference_network import VARIANTS, randomise

LENGTHS = (0, 1, 2, 5, 9, 70, 3, 130, 30)
"""An empty list, a single item, and lists longer than the positions that the network tells apart."""


def lists_for(variant: str, *, seed: int = 0, lengths: tuple[int, ...] = LENGTHS) -> ItemLists:
    """Return lists with the columns that the variant reads, some with tiny and some with huge numbers."""
    sizes, _ = VARIANTS[variant]
    rng = np.random.default_rng(seed)
    offsets = offsets_from_lengths(np.array(lengths))
    n_items = int(offsets[-1])
    texts = {name: rng.choice([f"{name} {code}" for code in range(6)], n_items) for name in sizes.categorical}
    of_lists = {name: rng.choice([f"{name} {code}" for code in range(3)], len(lengths)) for name in ("city",)}
    numbers = {f"number {column}": rng.normal(size=len(lengths)) for column in range(sizes.context)}
    scales = 10.0 ** np.array([-4, 0, 5])[: sizes.dense]
    return ItemLists(
        rng.normal(size=(n_items, sizes.dense)) * scales,
        offsets,
        categorical=texts,
        context=numbers | (of_lists if sizes.context_categorical else {}),
    )


def model_for(variant: str, lists: ItemLists, *, seed: int = 0) -> SlateModel:
    """Return a model whose weights are large enough that items differ."""
    model = SlateModel.create(lists, VARIANTS[variant][1])
    randomise(model.network, seed)
    return model


def reranker_of(model: SlateModel) -> Reranker:
    """Return an estimator that was fitted, as far as it can tell."""
    reranker = Reranker()
    reranker.model_, reranker.transform_, reranker.columns_ = model, model.transform, Columns()
    return reranker


def columns_of(one: ItemLists) -> dict[str, Any]:
    """Return the categorical and context columns of a single list, as a request has them."""
    context = {
        name: column[0] if isinstance(column, np.ndarray) else column[0].as_py() for name, column in one.context.items()
    }
    return {"categorical": {name: column.to_pylist() for name, column in one.categorical.items()}, "context": context}
