"""Which columns of the lists the baselines read.

Trees read every column: dense, categorical and context. All other baselines read numbers only, the dense columns and
most of them the base position; lists without a dense column are refused, since what is left to learn is the base order.
"""

from __future__ import annotations

from seq2slate.data.features import FeatureTransform, Scaling
from seq2slate.data.lists import ItemLists
from seq2slate.errors import DataError

READS_CATEGORIES = ("mart", "lambdamart", "random-forest", "seq2slate")
"""The kinds of estimators that read categorical and context columns."""


def fit_numbers(kind: str, train: ItemLists, *, scaling: Scaling = "signed-log") -> FeatureTransform:
    """Fit the transform of a ranker that reads dense columns only.

    Args:
        kind: The ranker's name, for the message.
        train: The training lists.
        scaling: Of the dense columns.

    Raises:
        DataError: The lists have no dense column.

    """
    if not train.n_features:
        others = [*train.categorical, *train.context]
        unread = f" (it does not read {', '.join(map(repr, others))})" if others else ""
        raise DataError(
            f"{kind} reads numbers only: the lists have no dense column{unread}; give features, or use one of "
            f"{', '.join(READS_CATEGORIES)}, which read categories"
        )
    return FeatureTransform.fit(train, scaling=scaling, categorical=[], context=[])
