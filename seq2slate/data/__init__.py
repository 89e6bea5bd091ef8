"""Lists in, batches out: readers, simulated users and the built-in data."""

from seq2slate.data.lists import Batch, ItemLists, Split
from seq2slate.data.ranker import Ranker, rank_lists, reorder_lists

__all__ = ["Batch", "ItemLists", "Ranker", "Split", "rank_lists", "reorder_lists"]
