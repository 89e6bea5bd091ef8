"""Problems of labels and columns: each is found, with what to do, and sound data has none."""

import warnings

import numpy as np
import pyarrow as pa
import pytest

from seq2slate import click_model, from_table, make_synthetic_lists, simulate_clicks
from seq2slate.data import checks
from seq2slate.data.checks import LOG_CHANCE, find_problems
from seq2slate.data.lists import FloatArray, ItemLists

RNG = np.random.default_rng(0)
N_LISTS, LENGTH = 60, 5
OFFSETS = np.arange(N_LISTS + 1) * LENGTH
CLICKS = (RNG.random(N_LISTS * LENGTH) < 0.3).astype(float)
NOISE = RNG.normal(size=(N_LISTS * LENGTH, 2))


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (["38,19", "1.204,50", "7,5", "12,00"], "numbers with a decimal comma, such as '38,19'"),
        (["12.50 EUR", "8 EUR", "1,200.00 EUR"], "numbers with a unit, such as '12.50 EUR'"),
        (["€ 12", "€ 12,50", "€7"], "numbers with a unit, such as '€ 12'"),
        (["12%", "3.5%", "7 %"], "numbers with a unit, such as '12%'"),
        (["1.5 km", "12 km", "0.3 km"], "numbers with a unit, such as '1.5 km'"),
        (["S", "M", "L"], ""),
        (["10 cm", "12.5 cm", "500 ml"], ""),
        (["42 EU", "43 EU", "10.5 US"], ""),
        (["A12", "B7", "12C"], ""),
        (["01234", "99501", "10115"], ""),
        (["12.05.2024", "13.05.2024", "31.12.2023"], ""),
        (["05/12/2024", "05/13/2024", "12/31/2023"], ""),
        (["1.2.3", "1.10.0", "2.0.1"], ""),
        (["1,2,3", "4", "2,7,9"], ""),
        (["drama,comedy", "action", "action,drama"], ""),
    ],
)
def test_numbers_as_they_are_written_in_a_shop_are_told_from_categories(values: list[str], note: str) -> None:
    table = pa.table({"list_id": [1] * len(values), "item_id": [*range(len(values))], "text": values})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        roles = from_table(table).roles
    assert roles is not None
    assert next(use.note for use in roles.uses if use.name == "text") == note
    assert [str(one.message).partition(" (")[0] for one in caught] == (
        [f"column 'text' is taken for categories, but holds {note}; convert it to numbers"] if note else []
    )


def lists_with(column: np.ndarray | None = None, labels: np.ndarray = CLICKS, **categorical: list[str]) -> ItemLists:
    features = NOISE if column is None else np.column_stack([NOISE, column])
    names = ["a", "b", "suspect"][: features.shape[1]]
    return ItemLists(features, OFFSETS, labels=labels, feature_names=names, categorical=categorical)


@pytest.mark.parametrize(
    ("column", "how"),
    [
        (CLICKS, "equals"),
        (CLICKS * 2 + 1, "determines"),
        (-CLICKS, "determines"),
        (CLICKS * 10 + RNG.random(len(CLICKS)), "determines"),  # no two values are the same
        (np.where(CLICKS > 0, RNG.integers(5, 9, len(CLICKS)), RNG.integers(10, 14, len(CLICKS))), "determines"),
        (
            np.where(CLICKS > 0, RNG.permutation([1, 3] * 150), RNG.permutation([0, 2] * 150)),
            "determines",
        ),  # not sorted
    ],
)
def test_a_column_that_gives_the_label_away_is_a_leak(column: np.ndarray, how: str) -> None:
    (problem,) = find_problems(lists_with(column))
    assert problem == (
        f"column 'suspect' {how} the label: a leak, unless it is known before the list is shown; leave it out (ignore=)"
    )


BOUGHT = CLICKS * (RNG.random(len(CLICKS)) < 0.5)


@pytest.mark.parametrize(
    ("column", "how"),
    [
        (np.where(CLICKS > 0, RNG.exponential(size=len(CLICKS)), 0), "determines the label"),
        (np.where(CLICKS > 0, RNG.exponential(size=len(CLICKS)), np.nan), "determines the label"),
        (np.where(BOUGHT > 0, RNG.exponential(size=len(CLICKS)), np.nan), "implies a positive label"),
        (BOUGHT, "implies a positive label"),
    ],
)
def test_a_column_that_is_there_only_after_a_click_is_a_leak(column: np.ndarray, how: str) -> None:
    (problem,) = find_problems(lists_with(column))
    assert f"column 'suspect' {how}: a leak" in problem


def test_that_few_unusual_values_are_positive_is_chance() -> None:
    """m unusual values are all positive with probability p^m, which is a leak below exp(LOG_CHANCE)."""
    enough = int(np.ceil(LOG_CHANCE / np.log(CLICKS.mean())))
    for n_unusual, is_leak in ((enough - 1, False), (enough, True)):
        column = np.zeros(len(CLICKS))
        column[np.flatnonzero(CLICKS)[:n_unusual]] = 1
        assert bool(find_problems(lists_with(column))) == is_leak
    column[np.flatnonzero(CLICKS == 0)[0]] = 1
    assert find_problems(lists_with(column)) == [], "one unusual value without a click"


def test_the_search_for_leaks_reads_fewer_items_of_wide_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that follows the label in the first items only is a leak if no others are read."""
    half = np.where(np.arange(len(CLICKS)) < 150, CLICKS, 1 - CLICKS)
    assert find_problems(lists_with(half)) == []
    monkeypatch.setattr("seq2slate.data.checks.FEWEST_ITEMS", 150)
    monkeypatch.setattr("seq2slate.data.checks.MOST_CELLS", 1)
    assert len(find_problems(lists_with(half))) == 1


def test_columns_of_one_value_are_not_searched_for_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file may have 100,000 columns, nearly all of them empty."""
    searched: list[FloatArray] = []
    monkeypatch.setattr(checks, "_leak", lambda values, labels: searched.append(values))
    features = np.zeros((100, 1000), np.float32)
    features[3, 7], features[:, 9], features[5, 11] = 1.0, 4.0, np.nan
    lists = ItemLists(features, [0, 50, 100], labels=np.arange(100) % 2)
    assert not find_problems(lists)
    np.testing.assert_array_equal(searched, features[:, [7, 11]].T)


def test_a_categorical_leak_is_named_too() -> None:
    (problem,) = find_problems(lists_with(outcome=["sold" if click else "seen" for click in CLICKS]))
    assert "column 'outcome' determines the label" in problem


@pytest.mark.parametrize(
    "column",
    [
        np.where(RNG.random(len(CLICKS)) < 0.02, 1 - CLICKS, CLICKS),  # strong, but not always right
        np.arange(len(CLICKS)),  # every value once
        np.arange(len(CLICKS)) // 2 * 1.0,  # pairs: some differ in their labels
        np.zeros(len(CLICKS)),
        RNG.normal(size=len(CLICKS)) + 2 * CLICKS,
    ],
)
def test_a_good_or_useless_column_is_no_leak(column: np.ndarray) -> None:
    assert find_problems(lists_with(column)) == []


def test_generated_logs_have_no_problems() -> None:
    log = simulate_clicks(
        click_model("diverse"), make_synthetic_lists(200, items=12, world="topics", features=8, seed=1), seed=1
    )
    assert find_problems(log) == []
    assert find_problems(log[:3]) == []
    assert find_problems(log[:0]) == []
    assert find_problems(ItemLists(NOISE, OFFSETS)) == []


def test_a_leak_of_rare_clicks_needs_evidence() -> None:
    """Two clicks among many items: that a column agrees with both proves nothing unless its values repeat."""
    labels = np.zeros(len(CLICKS))
    labels[[7, 100]] = 1
    by_chance = RNG.integers(0, 140, len(CLICKS)).astype(float)
    by_chance[[7, 100]] = 1000, 1001
    assert find_problems(lists_with(by_chance, labels)) == []


def test_grades_from_1_are_told() -> None:
    (problem,) = find_problems(lists_with(labels=CLICKS + 1))
    assert problem.startswith("the lowest label is 1, so every item counts as positive: subtract 1 from the labels")


def test_lists_in_which_everything_is_positive_are_told() -> None:
    labels = CLICKS.copy()
    labels[: 40 * LENGTH] = 1
    (problem,) = find_problems(lists_with(labels=labels))
    assert problem.startswith("in 40 of 60 lists with two or more items every item is positive")
    assert find_problems(lists_with(labels=np.ones(len(CLICKS))))[0].startswith("in 60 of 60 lists")
    single_items = ItemLists(NOISE, np.arange(len(NOISE) + 1), labels=np.ones(len(NOISE)))
    assert find_problems(single_items) == []
