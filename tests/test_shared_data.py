"""Real data: every set reads in one call, with the counts that its description gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seq2slate.data.files import read, write
from seq2slate.data.summary import summarise
from seq2slate.errors import DataWarning
from tests.memory import measured_memory
from tests.random_lists import assert_same_lists

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the real data are not here: {DATA}")

#        file                       lists  items  longest  features
COUNTS = {
    "mslr_sample.txt.gz": (178, 19_611, 337, 136),
    "yahoo_sample.train.txt.gz": (201, 3_005, None, 300),
    "yahoo_sample.test.txt.gz": (50, 768, None, 300),
    "mq2008.fold*.txt.gz": (784, 15_211, 121, 46),
    "cs276.txt.gz": (1_553, 15_224, 10, 47),
    "trivago_clicks.parquet": (1_887, 43_141, 25, 1),  # the description says 43,140; its rows add up to one more
    "outbrain_clicks.parquet": (1_959, 9_999, None, 0),
}
LABELS = {
    "mslr_sample.txt.gz": [0, 1, 2, 3, 4],
    "yahoo_sample.train.txt.gz": [0, 1, 2, 3, 4],
    "yahoo_sample.test.txt.gz": [0, 1, 2, 3, 4],
    "mq2008.fold*.txt.gz": [0, 1, 2],
    "cs276.txt.gz": [0, 1, 2, 3],
    "trivago_clicks.parquet": [0, 1],
    "outbrain_clicks.parquet": [0, 1],
}


ROLES: dict[str, Any] = {
    "trivago_clicks.parquet": {"context": "timestamp"},
    "outbrain_clicks.parquet": {"categorical": "timestamp"},
}
"""Columns that are warned of unless they are declared: times as integers and as text."""


@pytest.mark.parametrize("name", COUNTS)
def test_the_counts_are_those_of_the_description(name: str) -> None:
    n_lists, n_items, longest, n_features = COUNTS[name]
    summary = summarise(read(DATA / name, **ROLES.get(name, {})))
    assert (summary.lists, summary.items, summary.features) == (n_lists, n_items, n_features)
    if longest is not None:
        assert summary.length_quantiles[100] == longest
    assert summary.label_shares is not None
    assert sorted(summary.label_shares) == LABELS[name]


def test_mslr_has_the_label_shares_of_the_description() -> None:
    shares = summarise(read(DATA / "mslr_sample.txt.gz")).label_shares
    assert shares is not None
    np.testing.assert_allclose([100 * shares[label] for label in range(5)], [54.8, 30.0, 13.0, 1.5, 0.6], atol=0.05)


def test_yahoo_uses_218_of_its_features() -> None:
    assert len(summarise(read(DATA / "yahoo_sample.train.txt.gz")).constant_features) == 300 - 218


def test_mq2008_names_its_documents_and_has_220_queries_without_a_relevant_one() -> None:
    lists = read(DATA / "mq2008.fold*.txt.gz")
    assert summarise(lists).lists_without_positives == 220
    assert lists.item_ids[0].as_py() == "GX004-93-7097963"
    assert lists.categorical["comment"][0].as_py() == "inc = 0.0428115405134536 prob = 0.860366"


def test_cs276_keeps_its_comments() -> None:
    comments = read(DATA / "cs276.txt.gz").categorical["comment"]
    assert comments[0].as_py() == "rel=1.66666666667 http://live.stanford.edu/aboutus/staff.php"


@pytest.mark.parametrize("name", ["trivago_clicks.parquet", "outbrain_clicks.parquet"])
def test_every_list_of_the_logs_has_exactly_one_click(name: str) -> None:
    lists = read(DATA / name, **ROLES[name])
    assert lists.labels is not None
    np.testing.assert_array_equal(np.add.reduceat(lists.labels, lists.offsets[:-1]), 1)


def test_the_columns_of_the_logs_find_their_place() -> None:
    trivago, outbrain = (read(DATA / name, **roles) for name, roles in ROLES.items())
    assert trivago.feature_names == ("price",)
    assert set(trivago.context) == {"timestamp", "user_id", "platform", "city", "device", "filters"}
    assert trivago.context["timestamp"][0] == 1541030844
    assert set(outbrain.categorical) == {"document_id", "platform", "geo", "timestamp"}
    assert outbrain.item_ids[0].as_py() == "42337"


@pytest.mark.parametrize("name", ROLES)
def test_times_that_nobody_declared_are_warned_of_and_nothing_else(name: str) -> None:
    with pytest.warns(DataWarning, match="'timestamp' is taken for .*time") as caught:
        read(DATA / name)
    assert len(caught) == 1


def test_logs_of_ids_alone_are_read_without_a_warning() -> None:
    lists = read(DATA / "clara2_clicks.parquet", categorical="item_id")
    assert list(lists.categorical) == ["item_id", "url"]
    assert (len(lists), lists.n_items, lists.n_features) == (22_031, 220_310, 0)


@pytest.mark.parametrize("name", ["mq2008.fold1.txt.gz", "cs276.txt.gz", "yahoo_sample.test.txt.gz"])
def test_letor_sets_survive_every_format(tmp_path: Path, name: str) -> None:
    lists = read(DATA / name)[:60]
    for suffix in (".txt", ".parquet", ".jsonl"):
        write(lists, tmp_path / f"copy{suffix}")
        assert_same_lists(read(tmp_path / f"copy{suffix}"), lists)


@pytest.mark.parametrize("name", ["yahoo_sample.test.txt.gz", "trivago_clicks.parquet"])
def test_lists_in_memory_take_the_bytes_of_their_arrays(name: str) -> None:
    with measured_memory() as held_and_peak:
        lists = read(DATA / name, **ROLES.get(name, {}))
        held, _ = held_and_peak()
    assert held < 2 * lists.nbytes
