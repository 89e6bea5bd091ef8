"""seq2slate: re-rank whole slates. The public names, in the order of the flow."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.baselines.loading import load_ranker
from seq2slate.baselines.order import BaseOrder, RandomOrder
from seq2slate.baselines.out_of_fold import order_out_of_fold
from seq2slate.data.features import FeatureTransform
from seq2slate.data.files import read, read_split, write, write_split
from seq2slate.data.lists import Batch, ItemLists, Split
from seq2slate.data.parquet import from_table, stream_parquet, to_table
from seq2slate.data.ranker import Ranker, rank_lists, reorder_lists
from seq2slate.data.summary import summarise
from seq2slate.evaluation.evaluate import evaluate
from seq2slate.metrics import Measure
from seq2slate.simulation.click_models import click_model, simulate_clicks
from seq2slate.simulation.synthetic import make_synthetic_lists

if TYPE_CHECKING:
    from seq2slate.model.network import NetworkConfig
    from seq2slate.model.slate_model import Slate, SlateModel
    from seq2slate.training.config import PRESETS, TrainingConfig
    from seq2slate.training.fit import fit
    from seq2slate.training.objectives import ObjectiveConfig
    from seq2slate.training.train import Choices, train_model

__version__ = "0.1.0"

_NEED_TORCH = {
    "NetworkConfig": "seq2slate.model.network",
    "SlateModel": "seq2slate.model.slate_model",
    "Slate": "seq2slate.model.slate_model",
    "ObjectiveConfig": "seq2slate.training.objectives",
    "TrainingConfig": "seq2slate.training.config",
    "PRESETS": "seq2slate.training.config",
    "fit": "seq2slate.training.fit",
    "Choices": "seq2slate.training.train",
    "train_model": "seq2slate.training.train",
}


def __getattr__(name: str) -> Any:
    """Load what needs PyTorch, which takes seconds, only when it is asked for."""
    if name not in _NEED_TORCH:
        raise AttributeError(f"module 'seq2slate' has no attribute {name!r}")
    return getattr(import_module(_NEED_TORCH[name]), name)


__all__ = [
    # lists
    "ItemLists", "Split", "Batch", "read", "read_split", "write", "write_split",
    "from_table", "to_table", "stream_parquet", "summarise", "make_synthetic_lists",
    # users and features
    "click_model", "simulate_clicks", "FeatureTransform",
    # the network and its training
    "SlateModel", "Slate", "NetworkConfig", "ObjectiveConfig", "TrainingConfig", "PRESETS",
    "Choices", "fit", "train_model",
    # rankers
    "Ranker", "rank_lists", "reorder_lists", "load_ranker", "order_out_of_fold",
    "BaseOrder", "RandomOrder", "RidgeRanker", "LoggedCeiling", "ShownCeiling",
    # evaluation
    "Measure", "evaluate",
]  # fmt: skip
