"""The worlds beside a sample of WEB30K: `python -m benchmarks.worlds [--sample mslr_sample.txt.gz]`, a few minutes.

A world is drawn several times, each time with as many lists as the sample has, and measured as the sample is; the mean
over the draws is printed. Rankers are cross-fitted in five folds, so that each list is ordered by one that was trained
on four fifths of the others.

- Effective columns: the variance of each column within a list is its share of the squared Euclidean distances there;
  the inverse of the sum of the squared shares (inverse Simpson index), mean over lists.
- Clicks: *diverse-clicks* on whole lists in the order of the ridge regression.
- Look-alikes: the items of a list that are at most its median distance away. An item has few if they are fewer than
  half of the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.tables import Rows, print_table
from seq2slate import click_model, make_synthetic_lists, order_out_of_fold, read, simulate_clicks
from seq2slate.baselines.linear import RidgeRanker
from seq2slate.baselines.trees import LambdaMart
from seq2slate.data.lists import ItemLists
from seq2slate.data.ranker import BaseOrder
from seq2slate.estimator import Estimator
from seq2slate.metrics import Measure, measure_ranker
from seq2slate.simulation.similarity import similar_items
from seq2slate.simulation.synthetic import WORLDS

LISTS, DRAWS = 178, 4
MEASURES = (Measure("NDCG", 10), Measure("NDCG-exp", 10))
_LISTS_AT_ONCE = 32


def measure(lists: ItemLists) -> dict[str, float]:
    """Return all that is compared, by name."""
    base = order_out_of_fold(RidgeRanker(), lists)
    return {
        **_shape(lists),
        **_columns(lists),
        **_distances(lists),
        **_clicks(base),
        **_quality("ridge regression", base),
        **_quality("LambdaMART", _ordered_by_trees(lists)),
    }


def effective_columns(lists: ItemLists) -> npt.NDArray[np.float64]:
    """Return how many columns decide the Euclidean distances of each list (Q,)."""
    found: npt.NDArray[np.float64] = 1 / (_distance_shares(lists) ** 2).sum(axis=1)
    return found


def _shape(lists: ItemLists) -> dict[str, float]:
    assert lists.labels is not None, "these lists have grades"
    shares = np.bincount(lists.labels.astype(np.int64), minlength=5) / lists.n_items
    no_relevant = np.maximum.reduceat(lists.labels, lists.offsets[:-1]) < 2
    lengths = dict(zip(("5%", "median", "95%"), np.percentile(lists.lengths, [5, 50, 95]), strict=True))
    return {
        **{f"grade {grade}, %": 100 * share for grade, share in enumerate(shares)},
        "items a list": lists.lengths.mean(),
        **{f"items a list, {name}": value for name, value in lengths.items()},
        "lists without a relevant item, %": 100 * no_relevant.mean(),
    }


def _columns(lists: ItemLists) -> dict[str, float]:
    from scipy.stats import kurtosis

    x = lists.features[:, np.ptp(lists.features, axis=0) > 0].astype(np.float64)
    tails = dict(zip(("10%", "median", "90%"), np.percentile(kurtosis(x), [10, 50, 90]), strict=True))
    return {
        "columns of whole numbers": float((x == np.floor(x)).all(axis=0).sum()),
        **{f"kurtosis of the columns, {name}": value for name, value in tails.items()},
    }


def _distances(lists: ItemLists) -> dict[str, float]:
    return {
        "effective columns of the distances": float(effective_columns(lists).mean()),
        "share of the largest column, %": 100 * float(_distance_shares(lists).mean(axis=0).max()),
    }


def _distance_shares(lists: ItemLists) -> npt.NDArray[np.float64]:
    """Return (Q, F) the share of each column in the squared distances within each list of two items or more."""
    pairs = zip(lists.offsets[:-1], lists.offsets[1:], strict=True)
    variances = np.array([lists.features[a:b].astype(np.float64).var(axis=0) for a, b in pairs if b - a > 1])
    shares: npt.NDArray[np.float64] = variances / variances.sum(axis=1, keepdims=True)
    return shares


def _clicks(base: ItemLists) -> dict[str, float]:
    log = simulate_clicks(click_model("diverse"), base, seed=0)
    assert log.labels is not None
    assert log.relevance is not None
    relevant, many = log.relevance >= 2, np.concatenate(list(_look_alikes(log))) >= 0.5
    few_clicked, many_clicked = (log.labels[relevant & which].mean() for which in (~many, many))
    return {
        "clicks a list": log.labels.sum() / len(log),
        "clicked of relevant items with few look-alikes, %": 100 * few_clicked,
        "clicked of relevant items with many look-alikes, %": 100 * many_clicked,
    }


def _look_alikes(lists: ItemLists) -> Iterator[npt.NDArray[np.float64]]:
    """Yield the share of the other items of its list that each item is similar to, for some lists at a time."""
    for start in range(0, len(lists), _LISTS_AT_ONCE):
        some = lists[start : start + _LISTS_AT_ONCE]
        counts = similar_items(some, 0.5).sum(axis=2)[some.batch().mask]
        yield counts / np.maximum(some.lengths - 1, 1)[some.list_index]


def _ordered_by_trees(lists: ItemLists) -> ItemLists:
    estimator: Estimator = LambdaMart(base_position=False)
    return order_out_of_fold(estimator, lists)


def _quality(ranker: str, ordered: ItemLists) -> dict[str, float]:
    values = measure_ranker(BaseOrder(), ordered, MEASURES, k=10)
    return {f"{one} of {ranker}": float(np.nanmean(values[one])) for one in MEASURES}


def run(sample: str | None) -> Rows:
    columns = {}
    for world in WORLDS:
        draws = [measure(make_synthetic_lists(LISTS, world=world, seed=seed)) for seed in range(DRAWS)]
        columns[world] = {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}
    if sample is not None:
        columns["sample"] = measure(read(sample))
    return [{"": name, **{of: values[name] for of, values in columns.items()}} for name in columns["web30k"]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", help="graded lists of WEB30K to compare with")
    print_table(f"{DRAWS} draws of {LISTS} lists of each world", run(parser.parse_args().sample))


if __name__ == "__main__":
    main()
