"""The ridge ranker against scikit-learn's, and cross-fitting."""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from seq2slate.baselines.linear import RidgeRanker
from seq2slate.baselines.out_of_fold import order_out_of_fold
from seq2slate.data.features import FeatureTransform
from seq2slate.data.lists import Batch, IntArray, ItemLists
from seq2slate.data.ranker import slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.estimator import Estimator

pytestmark = pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")  # odd labels, and leaks to be learned


def random_lists(n_lists: int = 60, n_items: int = 8) -> ItemLists:
    rng = np.random.default_rng(1)
    features = rng.normal(size=(n_lists * n_items, 5))
    labels = features @ [1, 0, -1, 0, 0] + rng.normal(size=len(features)) > 1
    return ItemLists(features, np.arange(0, len(features) + 1, n_items), labels=labels)


def test_ridge_equals_scikit_learn() -> None:
    lists = random_lists()
    dense = FeatureTransform.fit(lists).apply(lists).dense.astype(np.float64)
    expected = Ridge(alpha=3.0).fit(dense, lists.labels)
    np.testing.assert_allclose(RidgeRanker(penalty=3.0).fit(lists).weights_, expected.coef_, rtol=1e-4, atol=1e-6)


def test_ridge_needs_labels() -> None:
    with pytest.raises(DataError, match="training lists have no labels"):
        RidgeRanker().fit(ItemLists(np.zeros((2, 1)), [0, 2]))


@dataclass(eq=False, kw_only=True)
class Memory(Estimator):
    """Puts the lists that it was fitted on backwards, and leaves all others as they are."""

    seen_: set[str] = field(init=False, repr=False)

    kind = "memory"
    fitted: ClassVar[list["Memory"]]

    def fit(self, train: ItemLists, valid: ItemLists | None = None, **_: object) -> Self:
        self.seen_ = set(train.list_ids.to_pylist())
        self.fitted.append(self)
        return self

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        seen = np.array([name in self.seen_ for name in batch.lists.list_ids.to_pylist()])
        return slates_from_scores(np.where(seen[:, None], 1.0, -1.0) * np.arange(batch.n_slots), batch.mask, k)


@pytest.fixture
def memory() -> Memory:
    Memory.fitted = []
    return Memory()


def test_no_list_is_ordered_by_a_ranker_that_saw_it(memory: Memory) -> None:
    lists = random_lists()
    ordered = order_out_of_fold(memory, lists, folds=3)
    assert ordered.list_ids.to_pylist() == lists.list_ids.to_pylist()
    np.testing.assert_array_equal(ordered.features, lists.features)
    np.testing.assert_array_equal(ordered.labels, lists.labels)


def test_every_fold_learns_from_all_the_others_and_the_estimator_itself_stays_as_it_is(memory: Memory) -> None:
    lists = random_lists(n_lists=10)
    order_out_of_fold(memory, lists, folds=5)
    assert [len(ranker.seen_) for ranker in Memory.fitted] == [8] * 5
    assert memory not in Memory.fitted
    assert not hasattr(memory, "seen_")
    with pytest.raises(UsageError, match="2 to 10 folds"):
        order_out_of_fold(memory, lists, folds=11)
