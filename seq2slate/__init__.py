"""seq2slate: re-rank whole slates. The public names, in the order of the flow."""

from seq2slate.baselines.ceiling import LoggedCeiling, ShownCeiling
from seq2slate.baselines.cross_fit import cross_fit
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.baselines.loading import load_ranker
from seq2slate.baselines.order import BaseOrder, RandomOrder
from seq2slate.data.clicks import label_log, make_user
from seq2slate.data.features import FeatureTransform
from seq2slate.data.files import read, read_split, write, write_split
from seq2slate.data.lists import Batch, ItemLists, Split
from seq2slate.data.parquet import from_table, stream_parquet, to_table
from seq2slate.data.ranker import Ranker, rank_lists, reorder_lists
from seq2slate.data.summary import summarise
from seq2slate.data.synthetic import generate
from seq2slate.evaluation.evaluate import evaluate
from seq2slate.metrics import Measure

__version__ = "0.1.0"

__all__ = [
    # lists
    "ItemLists", "Split", "Batch", "read", "read_split", "write", "write_split",
    "from_table", "to_table", "stream_parquet", "summarise", "generate",
    # users and features
    "make_user", "label_log", "FeatureTransform",
    # rankers
    "Ranker", "rank_lists", "reorder_lists", "load_ranker", "cross_fit",
    "BaseOrder", "RandomOrder", "RidgeRanker", "LoggedCeiling", "ShownCeiling",
    # evaluation
    "Measure", "evaluate",
]  # fmt: skip
