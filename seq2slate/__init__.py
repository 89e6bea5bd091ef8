"""seq2slate: re-rank whole slates with a pointer network that places items one by one."""

from seq2slate.data import Batch, ItemLists, Ranker, Split

__version__ = "0.1.0"

__all__ = ["Batch", "ItemLists", "Ranker", "Split"]
