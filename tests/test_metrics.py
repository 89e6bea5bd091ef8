"""The metrics equal trec_eval's, and what trec_eval does not have equals values worked out by hand."""

from dataclasses import dataclass, replace
from math import log2
from typing import Any

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ir_measures import AP, RR, P, Qrel, ScoredDoc, nDCG

from seq2slate.data.lists import BoolArray, IntArray
from seq2slate.errors import UsageError
from seq2slate.metrics import METRICS, Gain, Measure, NoPositives, Values, ndcg, precision, rank_gain

REFERENCES = {"MAP": AP, "MRR": RR, "NDCG": nDCG, "P": P}


@dataclass(frozen=True)
class Ranked:
    """Slates of some lists and the labels behind them; padding carries labels that must never count."""

    slates: IntArray
    labels: IntArray
    mask: BoolArray

    def by(self, measure: str, no_positives: NoPositives = "skip") -> Values:
        return Measure.parse(measure)(self.slates, self.labels, mask=self.mask, no_positives=no_positives)

    def alone(self, q: int) -> "Ranked":
        """List q by itself, without padding."""
        row, n = slice(q, q + 1), int(self.mask[q].sum())
        return Ranked(self.slates[row, :n], self.labels[row, :n], self.mask[row, :n])


def ranked_at_random(lengths: list[int], n_slots: int, seed: int) -> Ranked:
    rng = np.random.default_rng(seed)
    widest = max(lengths)
    slates = np.full((len(lengths), min(n_slots, widest)), -1)
    labels = np.full((len(lengths), widest), 3)
    for q, n in enumerate(lengths):
        chosen = rng.permutation(n)[: slates.shape[1]]
        slates[q, : len(chosen)] = chosen
        labels[q, :n] = rng.integers(0, 5, n) * (rng.random(n) < rng.choice([0.0, 0.3, 1.0]))
    return Ranked(slates, labels, np.arange(widest) < np.array(lengths)[:, None])


RANKED = st.builds(
    ranked_at_random, st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(1, 12), st.integers(0, 2**32)
)

MIXED = Ranked(  # an empty list, one without positives, a single item, a long one
    slates=np.array([[-1] * 6, [1, 0, 2, -1, -1, -1], [0, -1, -1, -1, -1, -1], [5, 0, 3, 1, 2, 4]]),
    labels=np.array([[7] * 6, [0, 0, 0, 7, 7, 7], [1, 7, 7, 7, 7, 7], [0, 2, 0, 0, 0, 1]]),
    mask=np.arange(6) < np.array([0, 3, 1, 6])[:, None],
)


def by_trec_eval(ranked: Ranked, measure: Any) -> dict[int, float]:
    """What ir_measures says of each list that has items; the slate becomes scores that fall from slot to slot."""
    qrels = [Qrel(str(q), str(item), int(ranked.labels[q, item])) for q, item in np.argwhere(ranked.mask)]
    run = [ScoredDoc(str(q), str(item), -slot) for (q, slot), item in np.ndenumerate(ranked.slates) if item >= 0]
    return {int(found.query_id): found.value for found in ir_measures.iter_calc([measure], qrels, run)}


def assert_equal_to_trec_eval(values: Values, ranked: Ranked, measure: Any) -> None:
    expected = by_trec_eval(ranked, measure)
    assert sorted(expected) == np.flatnonzero(ranked.mask.any(axis=1)).tolist()
    np.testing.assert_allclose(values[list(expected)], list(expected.values()), rtol=0, atol=1e-9)


# Against trec_eval


@pytest.mark.parametrize("name", REFERENCES)
@settings(max_examples=50)
@given(ranked=RANKED, k=st.integers(1, 15))
def test_metrics_equal_those_of_trec_eval(name: str, ranked: Ranked, k: int) -> None:
    assert_equal_to_trec_eval(ranked.by(f"{name}@{k}", "zero"), ranked, REFERENCES[name] @ k)


@pytest.mark.parametrize("name", ["MAP", "MRR", "NDCG"])
@settings(max_examples=30)
@given(ranked=RANKED)
def test_metrics_without_a_cut_equal_those_of_trec_eval(name: str, ranked: Ranked) -> None:
    assert_equal_to_trec_eval(ranked.by(name, "zero"), ranked, REFERENCES[name])


@settings(max_examples=50)
@given(ranked=RANKED, k=st.integers(1, 15))
def test_exponential_gain_is_linear_gain_of_two_to_the_label_less_one(ranked: Ranked, k: int) -> None:
    exponential = replace(ranked, labels=2**ranked.labels - 1)
    assert_equal_to_trec_eval(ranked.by(f"NDCG-exp@{k}", "zero"), exponential, nDCG @ k)


# Worked out by hand


def test_exponential_gain_of_a_label_beyond_two_to_the_1024_is_a_number() -> None:
    labels, mask = np.array([[0, 3000, 3001]]), np.ones((1, 3), dtype=bool)
    values = ndcg(np.array([[1, 2, 0]]), labels, mask=mask, gain="exponential")
    np.testing.assert_allclose(values, (1 + 2 / log2(3)) / (2 + 1 / log2(3)))


def test_rank_gain_of_a_worked_example() -> None:
    # base order   0  1  2  3  4      positive: 0, 3 and 4
    # new order    3  0  1  4  2
    # item 0 falls from position 0 to 1: -1;  item 3 rises from 3 to 0: +3;  item 4 rises from 4 to 3: +1
    slates, labels = np.array([[3, 0, 1, 4, 2]]), np.array([[1, 0, 0, 2, 1]])
    assert rank_gain(slates, labels, mask=np.ones((1, 5), dtype=bool)).tolist() == [-1 + 3 + 1]


def test_rank_gain_of_a_truncated_slate_goes_on_in_base_order() -> None:
    # slate 4 2, then 0 1 3:  item 1 falls from position 1 to 3: -2;  item 4 rises from 4 to 0: +4
    labels, mask = np.array([[0, 1, 0, 0, 1]]), np.ones((1, 5), dtype=bool)
    assert rank_gain(np.array([[4, 2]]), labels, mask=mask).tolist() == [-2 + 4]
    longer = np.array([[4, 2, 1, 3, 0]])
    assert rank_gain(longer, labels, mask=mask, k=2).tolist() == [-2 + 4]
    assert rank_gain(longer, labels, mask=mask).tolist() == [-1 + 4]


def test_the_mixed_batch() -> None:
    nan = np.nan
    np.testing.assert_allclose(MIXED.by("MAP"), [nan, nan, 1, (1 / 1 + 2 / 4) / 2])
    np.testing.assert_allclose(MIXED.by("MRR"), [nan, nan, 1, 1])
    np.testing.assert_allclose(MIXED.by("P@2"), [nan, nan, 1 / 2, 1 / 2])
    np.testing.assert_allclose(MIXED.by("NDCG"), [nan, nan, 1, (1 + 2 / log2(5)) / (2 + 1 / log2(3))])
    np.testing.assert_allclose(MIXED.by("NDCG-exp"), [nan, nan, 1, (1 + 3 / log2(5)) / (3 + 1 / log2(3))])
    np.testing.assert_array_equal(MIXED.by("rank-gain"), [0, 0, 0, 5 - 2])
    np.testing.assert_array_equal(MIXED.by("clicks@3"), [0, 0, 1, 1])
    np.testing.assert_array_equal(MIXED.by("clicks"), [0, 0, 1, 3])


def test_precision_without_a_cut_is_over_the_items_of_the_slate_not_the_padding() -> None:
    np.testing.assert_array_equal(MIXED.by("P"), [np.nan, np.nan, 1 / 1, 2 / 6])
    assert precision(np.array([[1, -1]]), np.array([[0, 1]]), mask=np.ones((1, 2), dtype=bool)).tolist() == [1]


# Whatever the lists


@pytest.mark.parametrize("name", METRICS)
@settings(max_examples=30)
@given(ranked=RANKED, cut=st.sampled_from(["", "@1", "@4"]))
def test_a_list_is_worth_the_same_in_any_company(name: str, ranked: Ranked, cut: str) -> None:
    alone = [ranked.alone(q).by(name + cut)[0] for q in range(len(ranked.mask))]
    values = ranked.by(name + cut)
    assert values.dtype == np.float64
    np.testing.assert_allclose(values, alone, rtol=1e-12)


@pytest.mark.parametrize(("no_positives", "stand_in"), [("skip", np.nan), ("zero", 0.0), ("one", 1.0)])
@pytest.mark.parametrize("name", METRICS)
def test_the_policy_is_for_lists_without_positives_only(name: str, no_positives: NoPositives, stand_in: float) -> None:
    values = MIXED.by(name, no_positives)
    expected = stand_in if Measure(name).needs_positives else 0.0
    np.testing.assert_array_equal(values[:2], [expected, expected])
    np.testing.assert_array_equal(values[2:], MIXED.by(name)[2:])


@pytest.mark.parametrize("name", METRICS)
def test_no_lists_and_lists_without_items_are_fine(name: str) -> None:
    measure = Measure(name, 3)
    for n_lists in (0, 2):
        nothing = np.zeros((n_lists, 0), dtype=np.int64)
        values = measure(nothing, nothing, mask=nothing.astype(bool), no_positives="zero")
        assert values.tolist() == [0.0] * n_lists


@pytest.mark.parametrize("name", METRICS)
def test_the_inputs_are_left_as_they_were(name: str) -> None:
    before = [array.copy() for array in (MIXED.slates, MIXED.labels, MIXED.mask)]
    MIXED.by(f"{name}@2")
    for array, copy in zip((MIXED.slates, MIXED.labels, MIXED.mask), before, strict=True):
        np.testing.assert_array_equal(array, copy)


# Measures as values


@given(name=st.sampled_from(list(METRICS)), k=st.none() | st.integers(1, 1000))
def test_a_measure_parses_what_it_prints(name: str, k: int | None) -> None:
    measure = Measure(name, k)
    for text in (str(measure), str(measure).lower(), f" {str(measure).upper()} "):
        assert Measure.parse(text) == measure
    assert len({measure, Measure.parse(str(measure))}) == 1


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("ndcg@10", "NDCG@10"),
        ("map", "MAP"),
        ("mrr", "MRR"),
        ("p@5", "P@5"),
        ("RANK-GAIN", "rank-gain"),
        ("Clicks@5", "clicks@5"),
        ("ndcg-exp@10", "NDCG-exp@10"),
    ],
)
def test_the_names_that_people_type(text: str, printed: str) -> None:
    assert str(Measure.parse(text)) == printed


def recall(slates: IntArray, labels: IntArray, *, mask: BoolArray, k: int | None = None) -> Values:
    at_slots = np.take_along_axis(labels, np.maximum(slates, 0), axis=1)[:, :k] * (slates >= 0)[:, :k]
    shares: Values = (at_slots > 0).sum(axis=1) / np.maximum(((labels > 0) & mask).sum(axis=1), 1)
    return shares


def test_a_new_metric_needs_a_function_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, "Recall", recall)
    measure = Measure.parse("recall@3")
    assert str(measure) == "Recall@3"
    assert not measure.needs_positives
    np.testing.assert_allclose(MIXED.by("Recall@3"), [0, 0, 1, 1 / 2])
    np.testing.assert_allclose(MIXED.by("recall"), [0, 0, 1, 2 / 2])


@pytest.mark.parametrize("text", ["recall@5", "", "@5", "NDCG@", "NDCG@x", "NDCG@-1", "NDCG 10"])
def test_an_unknown_measure_is_answered_with_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Measure.parse(text)
    assert repr(text) in str(caught.value)
    assert all(name in str(caught.value) for name in METRICS)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("k", [0, -1])
def test_a_cut_without_slots_is_refused(name: str, k: int) -> None:
    with pytest.raises(UsageError, match=f"k must be at least 1, got {k}"):
        METRICS[name](MIXED.slates, MIXED.labels, mask=MIXED.mask, k=k)


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown measure 'ndcg'"):
        Measure("ndcg")
    with pytest.raises(UsageError, match="NDCG@0: a measure needs at least one slot"):
        Measure.parse("NDCG@0")
    policy: Any = "ignore"
    with pytest.raises(UsageError, match="no_positives must be one of skip, zero, one; got 'ignore'"):
        MIXED.by("MAP", policy)
    gain: Gain | Any = "cubic"
    with pytest.raises(UsageError, match="gain must be one of linear, exponential; got 'cubic'"):
        ndcg(MIXED.slates, MIXED.labels, mask=MIXED.mask, gain=gain)
