"""Rankers side by side: every list keeps its own value, and the table and the JSON say what was found."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from math import log2
from textwrap import dedent
from typing import Any, NoReturn

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, RR, Measure, P, Qrel, ScoredDoc, nDCG
from rich.console import Console

import seq2slate
from seq2slate.data.lists import Batch, FloatArray, IntArray, ItemLists, offsets_from_lengths
from seq2slate.data.ranker import Ranker, rank_lists, slates_from_scores
from seq2slate.errors import DataError, UsageError
from seq2slate.evaluation.evaluate import evaluate
from seq2slate.evaluation.statistics import bootstrap_interval, randomisation_test
from seq2slate.metrics import measure_ranker
from seq2slate.simulation.click_models import CascadeModel, SimilarClicks

pytestmark = pytest.mark.filterwarnings("ignore::seq2slate.errors.DataWarning")  # odd labels, and leaks to be learned


@dataclass(frozen=True)
class ByScore:
    """Sorts by any function of a batch that scores its items (B, N)."""

    scores: Callable[[Batch], FloatArray]

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        return slates_from_scores(self.scores(batch), batch.mask, k)


@dataclass(frozen=True)
class Fixed:
    """Answers every batch with the same slates."""

    slates: list[list[int]]

    def rank(self, batch: Batch, k: int | None = None) -> IntArray:
        return np.array(self.slates)


BY_FEATURE = ByScore(lambda batch: batch.features[:, :, 0])
CEILING = ByScore(lambda batch: batch.labels)
REVERSED = ByScore(lambda batch: np.broadcast_to(np.arange(batch.n_slots, dtype=np.float32), batch.mask.shape))


def random_lists(n_lists: int = 300, *, seed: int = 0, max_length: int = 30) -> ItemLists:
    """Uneven lists with graded labels that the first feature knows something about; some empty, some without labels."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, max_length + 1, n_lists)
    labels = rng.choice(5, p=[0.8, 0.05, 0.05, 0.05, 0.05], size=lengths.sum())
    features = np.stack([labels + rng.normal(size=len(labels)), rng.normal(size=len(labels))], axis=1)
    return ItemLists(features, offsets_from_lengths(lengths), labels=labels)


def identical_lists(n_lists: int, labels: list[int]) -> ItemLists:
    n_items = len(labels)
    return ItemLists(np.zeros((n_lists * n_items, 1)), np.arange(n_lists + 1) * n_items, labels=labels * n_lists)


def by_trec_eval(ranker: ByScore, lists: ItemLists, measure: Measure) -> dict[int, float]:
    assert lists.labels is not None
    places = zip(lists.list_index.tolist(), lists.positions.tolist(), lists.labels.tolist(), strict=True)
    qrels = [Qrel(str(q), str(position), int(label)) for q, position, label in places]
    slates = rank_lists(ranker, lists)
    run = [ScoredDoc(str(q), str(item), -slot) for (q, slot), item in np.ndenumerate(slates) if item >= 0]
    return {int(found.query_id): found.value for found in ir_measures.iter_calc([measure], qrels, run)}


# Values


@pytest.mark.parametrize(("name", "reference"), [("MAP", AP), ("MRR", RR), ("NDCG@10", nDCG @ 10), ("P@5", P @ 5)])
def test_every_list_gets_its_own_value(name: str, reference: Measure) -> None:
    lists = random_lists(600)  # more than two batches, so that lists are out of order on the way
    evaluation = evaluate({"feature": BY_FEATURE}, lists, measures=[name], no_positives="zero")
    expected = by_trec_eval(BY_FEATURE, lists, reference)
    values = evaluation.per_list["feature", name]
    np.testing.assert_allclose(values[list(expected)], list(expected.values()), rtol=0, atol=1e-9)
    assert (values[lists.lengths == 0] == 0).all()
    assert evaluation.row("feature", name).mean == pytest.approx(sum(expected.values()) / len(lists))


def test_one_loop_measures_every_list_as_if_it_were_alone() -> None:
    lists = random_lists(600)
    measures = [seq2slate.Measure.parse(name) for name in ("MAP", "NDCG@3", "rank-gain@2", "clicks@3")]
    values = measure_ranker(BY_FEATURE, lists, measures, no_positives="zero")
    cut = measure_ranker(BY_FEATURE, lists, measures[1:], k=3, no_positives="zero")
    for q, one in enumerate(lists):
        batch = one.batch()
        slate = BY_FEATURE.rank(batch)
        for measure in measures:
            expected = measure(slate, batch.labels, mask=batch.mask, no_positives="zero")
            assert values[measure][q] == pytest.approx(expected[0])
            assert measure.k is None or cut[measure][q] == pytest.approx(expected[0])  # three slots are enough
    assert set(values) == set(measures)


def test_a_row_is_made_of_the_values_of_its_lists() -> None:
    evaluation = evaluate({"feature": BY_FEATURE, "reversed": REVERSED}, random_lists(), baseline="feature", seed=5)
    assert evaluation.rankers == ("base", "feature", "reversed")
    assert evaluation.measures == ("MAP", "NDCG@5", "NDCG@10", "rank-gain")
    for row in evaluation.rows:
        values = evaluation.per_list[row.ranker, row.measure]
        against = evaluation.per_list["feature", row.measure]
        assert row.n_lists == (~np.isnan(values)).sum()
        assert row.mean == pytest.approx(np.nanmean(values))
        assert (row.low, row.high) == bootstrap_interval(values, seed=5)
        assert row.p_value == (None if row.ranker == "feature" else randomisation_test(values, against, seed=5))
        assert row.gap_closed is None


def test_lists_without_positives_follow_the_policy_except_where_they_have_a_value() -> None:
    lists = ItemLists(np.zeros((5, 1)), [0, 0, 2, 5], labels=[0, 0, 0, 1, 0])  # empty, no positives, one positive
    measures = ["MRR", "rank-gain", "clicks@1"]
    found = {policy: evaluate({}, lists, measures=measures, no_positives=policy) for policy in ("skip", "zero", "one")}
    rows = {policy: evaluation.row("base", "MRR") for policy, evaluation in found.items()}
    assert {policy: (row.mean, row.n_lists) for policy, row in rows.items()} == {
        "skip": (1 / 2, 1),
        "zero": ((0 + 0 + 1 / 2) / 3, 3),
        "one": ((1 + 1 + 1 / 2) / 3, 3),
    }
    for evaluation in found.values():
        assert evaluation.n_without_positives == 2
        assert evaluation.row("base", "rank-gain").n_lists == 3
        assert evaluation.row("base", "clicks@1").mean == 0


def test_the_base_order_is_always_there_and_can_be_replaced() -> None:
    lists = identical_lists(4, [0, 0, 1])
    assert evaluate({}, lists, measures=["MRR"]).row("base", "MRR").mean == pytest.approx(1 / 3)
    assert evaluate({"base": REVERSED}, lists, measures=["MRR"]).row("base", "MRR").mean == 1


def test_with_k_only_k_slots_are_filled() -> None:
    lists = identical_lists(4, [0, 1, 1])
    evaluation = evaluate({"reversed": REVERSED}, lists, measures=["MAP", "clicks"], k=1)
    assert evaluation.row("base", "clicks").mean == 0
    assert evaluation.row("reversed", "clicks").mean == 1
    assert evaluation.row("reversed", "MAP").mean == 1 / 2


def test_the_seed_decides_everything() -> None:
    lists, user = random_lists(50), SimilarClicks()
    first, again, other = (evaluate({"f": BY_FEATURE}, lists, user=user, seed=seed).to_json() for seed in (1, 1, 2))
    assert first == again
    assert json.loads(first)["rows"] != json.loads(other)["rows"]


# The user sees the new slate


def test_re_shown_clicks_are_those_of_the_first_slots() -> None:
    lists = identical_lists(3, [0] * 9 + [4] * 3)
    evaluation = evaluate({"reversed": REVERSED}, lists, user=CascadeModel(eta=1))
    found = {(row.ranker, row.measure): row.mean for row in evaluation.rows if "re-shown" in row.measure}
    assert found == {
        ("base", "re-shown clicks@5"): 0,
        ("base", "re-shown clicks@10"): pytest.approx(1 / 10),
        ("reversed", "re-shown clicks@5"): pytest.approx(1 / 1 + 1 / 2 + 1 / 3),
        ("reversed", "re-shown clicks@10"): pytest.approx(1 / 1 + 1 / 2 + 1 / 3),
    }


def test_rankers_are_shown_with_common_random_numbers() -> None:
    rankers = {"one": BY_FEATURE, "same": BY_FEATURE}
    evaluation = evaluate(rankers, random_lists(80), user=SimilarClicks(eta=1), repeats=1)
    one, same, base = (evaluation.per_list[name, "re-shown clicks@10"] for name in ("one", "same", "base"))
    np.testing.assert_array_equal(one, same)
    assert (one != base).any()


# From base order to ceiling


def test_the_share_of_the_gap_runs_from_the_base_order_to_the_ceiling() -> None:
    lists = identical_lists(10, [0, 0, 0, 1])
    second = Fixed([[0, 3, 1, 2]] * 10)
    evaluation = evaluate({"second": second, "best": CEILING}, lists, measures=["MRR", "rank-gain"], ceiling="best")
    shares = {(row.ranker, row.measure): row.gap_closed for row in evaluation.rows}
    assert shares == {
        ("base", "MRR"): 0,
        ("second", "MRR"): pytest.approx((1 / 2 - 1 / 4) / (1 - 1 / 4)),
        ("best", "MRR"): 1,
        ("base", "rank-gain"): 0,
        ("second", "rank-gain"): pytest.approx(2 / 3),
        ("best", "rank-gain"): 1,
    }


def test_the_best_of_several_ceilings_counts_and_no_gap_has_no_share() -> None:
    lists = identical_lists(10, [0, 0, 0, 1])
    rankers: dict[str, Ranker] = {"best": CEILING, "low": Fixed([[0, 3, 1, 2]] * 10)}
    both = evaluate(rankers, lists, measures=["MRR", "clicks"], ceiling=["low", "best"])
    assert both.row("best", "MRR").gap_closed == 1
    assert both.row("low", "MRR").gap_closed == pytest.approx(1 / 3)
    assert both.row("low", "clicks").gap_closed is None  # all orders have the same items
    assert "from base to low, best (the best of them)" in " ".join(str(both).split())


# What people and programs read


def strict_json(text: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "lists",
    [
        ItemLists(np.zeros((0, 1)), [0], labels=[]),
        ItemLists(np.zeros((0, 1)), [0, 0], labels=[]),
        ItemLists(np.zeros((2, 1)), [0, 2], labels=[0, 0]),
        ItemLists(np.zeros((2, 1)), [0, 2], labels=[0, 1]),
    ],
    ids=["no lists", "an empty list", "no positives", "one list"],
)
def test_what_is_not_a_number_is_null_in_json_and_a_dash_in_the_table(lists: ItemLists) -> None:
    evaluation = evaluate({"best": CEILING}, lists, user=CascadeModel(), ceiling="best")
    content = strict_json(evaluation.to_json())
    assert len(content["rows"]) == len(evaluation.rows) == 2 * 6
    for row, written in zip(evaluation.rows, content["rows"], strict=True):
        assert written["mean"] == (None if np.isnan(row.mean) else row.mean)
        assert written["low"] is None
        assert written["high"] is None
    assert "nan" not in str(evaluation)


def test_json_holds_every_row_and_how_it_was_made() -> None:
    content = strict_json(evaluate({"best": CEILING}, random_lists(30), ceiling=["best"], seed=3).to_json())
    settings = {name: content[name] for name in ("n_lists", "no_positives", "baseline", "ceiling", "seed", "repeats")}
    assert settings == {
        "n_lists": 30,
        "no_positives": "skip",
        "baseline": "base",
        "ceiling": ["best"],
        "seed": 3,
        "repeats": None,
    }
    fields = {"ranker", "measure", "mean", "low", "high", "p_value", "gap_closed", "n_lists"}
    assert all(set(row) == fields for row in content["rows"])


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # the text stays plain all the same
    lists = ItemLists.concat([identical_lists(20, [0, 0, 0, 1]), identical_lists(2, [0, 0, 0, 0])])
    rankers: dict[str, Ranker] = {"second place": Fixed([[0, 3, 1, 2]] * 22), "best": CEILING}
    evaluation = evaluate(rankers, lists, measures=["MRR", "NDCG@5"], ceiling="best", seed=9)
    table, footer = str(evaluation).split("\n\n")
    assert table == dedent(f"""\
        ranker        MRR            NDCG@5
        {"─" * 42}
        base          {1 / 4:.3f} ±0.000   {1 / log2(5):.3f} ±0.000
        second place  {1 / 2:.3f} ±0.000*  {1 / log2(3):.3f} ±0.000*
          gap closed  {1 / 3:.0%}            {(1 / log2(3) - 1 / log2(5)) / (1 - 1 / log2(5)):.0%}
        best          1.000 ±0.000*  1.000 ±0.000*""")
    assert " ".join(footer.split()) == (
        "mean over lists ± half the width of its 95% bootstrap interval (2,000 resamples) "
        "* differs from base: p < 0.05 in a paired two-sided randomisation test (10,000 sign flips) "
        "22 lists; 2 without positives are skipped (in rank-gain and clicks they count as they are) "
        "NDCG: linear gain, the label itself "
        "gap closed: the share of the way from base to best "
        "seed 9"
    )


def test_the_table_takes_names_literally_and_fits_a_terminal() -> None:
    evaluation = evaluate({"[red]mine[/red]": REVERSED}, random_lists(50), user=CascadeModel())
    console = Console(file=StringIO(), width=80)
    with console.capture() as captured:
        console.print(evaluation.table())
    assert "[red]mine" in captured.get()
    assert "…" not in captured.get()  # nothing is cut off


def test_the_spread_in_the_table_is_half_the_interval() -> None:
    evaluation = evaluate({}, random_lists(), measures=["MAP"])
    row = evaluation.row("base", "MAP")
    assert row.high - row.low > 0.01
    assert f"{row.mean:.3f} ±{(row.high - row.low) / 2:.3f}\n" in str(evaluation)


def table_of(measures: list[str], **options: Any) -> str:
    evaluation = evaluate({"reversed": REVERSED}, identical_lists(8, [1, 0]), measures=measures, **options)
    return " ".join(str(evaluation).split())


def test_the_table_tells_the_gain_the_policy_and_the_user() -> None:
    assert "NDCG: linear gain" in table_of(["NDCG@5"])
    assert "exponential" not in table_of(["NDCG@5"])
    assert "NDCG-exp: exponential gain" in table_of(["NDCG-exp@5"])
    assert "linear" not in table_of(["NDCG-exp@5"])
    assert "counted as 1" in table_of(["MAP"], no_positives="one")
    assert "differs from reversed" in table_of(["MAP"], baseline="reversed")
    assert "mean of 7 repeats" in table_of(["MAP"], user=CascadeModel(), repeats=7)
    assert "re-shown" not in table_of(["MAP"])
    assert "gap closed" not in table_of(["MAP"])


# What is refused


def test_lists_without_labels_cannot_be_evaluated() -> None:
    with pytest.raises(DataError, match="these lists have no labels"):
        evaluate({}, ItemLists(np.zeros((2, 1)), [0, 2]))


@pytest.mark.parametrize("options", [{"baseline": "bse"}, {"ceiling": "bse"}, {"ceiling": ["best", "bse"]}])
def test_a_name_that_is_no_ranker_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no ranker 'bse' to compare with; there are base, best"):
        evaluate({"best": CEILING}, identical_lists(2, [0, 1]), **options)


def test_a_row_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="rankers: base; measures: MAP"):
        evaluate({}, identical_lists(2, [0, 1]), measures=["MAP"]).row("base", "MRR")


@pytest.mark.parametrize(
    "slates",
    [
        [[1, 1, 0], [0, 1, -1]],  # twice
        [[2, 1, 0], [0, 2, -1]],  # padding
        [[2, 1, 3], [0, 1, -1]],  # beyond the end
        [[2, 1, -2], [0, 1, -1]],  # before the beginning
        [[2, 1, -1], [0, 1, -1]],  # an item left out
        [[2, 1, 0], [0, -1, 1]],  # a hole
        [[2, 1, 0], [0, 1, 0]],  # twice, beyond the end
    ],
)
def test_a_slate_that_is_no_order_of_its_list_is_refused(slates: list[list[int]]) -> None:
    lists = ItemLists(np.zeros((5, 1)), [0, 2, 5], labels=np.zeros(5), list_ids=["two", "three"])
    by_length = slates[::-1]  # batches hold the shorter list first
    name = "three" if slates[1] == [0, 1, -1] else "two"
    with pytest.raises(DataError, match=f"ranker 'mine', list '{name}'"):
        evaluate({"mine": Fixed(by_length)}, lists)


def test_slates_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(DataError, match=r"ranker 'mine' gave slates of shape \(2, 1\), expected \(2, 2\)"):
        evaluate({"mine": Fixed([[0], [0]])}, identical_lists(2, [0, 1]))


# Size


def test_one_long_list_does_not_make_all_lists_long() -> None:
    lengths = np.full(4000, 10)
    lengths[17] = 4000
    lists = ItemLists(np.zeros((lengths.sum(), 1)), offsets_from_lengths(lengths), labels=np.ones(lengths.sum()))
    tracemalloc.start()
    try:
        evaluate({"feature": BY_FEATURE}, lists, user=CascadeModel())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64e6  # dense slates (4000, 4000) alone would be 128 MB
