"""The pictures say what the rows say: marks are read back from the charts, and files from the disk."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seq2slate.errors import UsageError
from seq2slate.evaluation import figures
from seq2slate.evaluation.comparison import Comparison


def table_rows(
    means: dict[str, float | None], metric: str = "NDCG@10", half: float | None = 0.01
) -> list[dict[str, Any]]:
    def end(mean: float | None, sign: int) -> float | None:
        return None if mean is None or half is None else mean + sign * half

    return [
        {"ranker": ranker, "metric": metric, "mean": mean, "low": end(mean, -1), "high": end(mean, 1), "seeds": [0]}
        for ranker, mean in means.items()
    ]


MEANS: dict[str, float | None] = {
    "base order": 0.50,
    "above": 0.60,
    "unclear": 0.505,
    "below": 0.40,
    "unknown": None,
    "ceiling low": 0.70,
    "ceiling high": 0.75,
}


def data_of(chart: figures.Chart | None) -> list[list[dict[str, Any]]]:
    """The rows of each data set of a chart."""
    assert chart is not None
    return list(chart.to_dict()["datasets"].values())


def rows_with(chart: figures.Chart | None, *fields: str) -> list[dict[str, Any]]:
    """The rows that have all of these fields."""
    return [row for rows in data_of(chart) for row in rows if all(field in row for field in fields)]


# What a table says


def test_the_share_of_the_gap_runs_from_the_base_order_to_the_highest_ceiling() -> None:
    comparison = Comparison(table_rows(MEANS))
    assert comparison.gap_closed("above", "NDCG@10") == pytest.approx((0.60 - 0.50) / (0.75 - 0.50))
    assert comparison.gap_closed("below", "NDCG@10") == pytest.approx((0.40 - 0.50) / (0.75 - 0.50))
    assert comparison.gap_closed("unknown", "NDCG@10") is None
    assert comparison.gain("above", "NDCG@10") == pytest.approx(0.60 / 0.50 - 1)


@pytest.mark.parametrize(
    "means",
    [{"base order": 0.5, "mine": 0.6}, {"mine": 0.6, "ceiling": 0.9}, {"base order": 0.9, "mine": 0.6, "ceiling": 0.9}],
    ids=["no ceiling", "no base order", "no gap"],
)
def test_without_a_gap_no_share_is_closed(means: dict[str, float | None]) -> None:
    assert Comparison(table_rows(means)).gap_closed("mine", "NDCG@10") is None


def test_references_are_not_in_the_race_and_a_base_order_can_be_best() -> None:
    comparison = Comparison(table_rows({"base order": 0.7, "mine": 0.6, "ceiling": 0.9}))
    assert [cell.ranker for cell in comparison.contenders("NDCG@10")] == ["mine"]
    best = comparison.best("NDCG@10")
    assert best is not None
    assert best.ranker == "base order"
    assert comparison.gain("mine", "no such metric") is None


# Dots and intervals


def test_rankers_are_sorted_and_coloured_by_where_their_interval_lies() -> None:
    chart = figures.interval_picture(table_rows(MEANS))
    dots = rows_with(chart, "mean")
    assert [(dot["ranker"], dot["meaning"]) for dot in dots] == [
        ("above", "above the base order"),
        ("unclear", "not told apart"),
        ("below", "below the base order"),
    ]
    assert {row["label"]: row["x"] for row in rows_with(chart, "label")} == {
        "base order 0.500": 0.50,
        "ceiling high 0.750": 0.75,
    }


def test_another_metric_stands_in_where_ndcg_is_missing_and_nothing_is_no_picture() -> None:
    chart = figures.interval_picture(table_rows({"mine": 0.6}, "MAP", half=None))
    assert "MAP" in json.dumps(chart.to_dict() if chart else None)
    assert figures.interval_picture(table_rows({"base order": 0.5, "mine": None})) is None


# Figure 2


def attention(n_items: int, slate: list[int], n_steps: int | None = None) -> dict[str, Any]:
    """Every step gives the item that it places one half, and the others equal parts of the rest."""
    steps = slate[: len(slate) if n_steps is None else n_steps]
    rest = 0.5 / max(n_items - 1, 1)
    return {
        "list_id": "q1",
        "items": [{"id": f"d{i}", "grade": None, "clicked": i == 1} for i in range(n_items)],
        "slate": slate,
        "probabilities": [[0.5 if i == item else rest for i in range(n_items)] for item in steps],
    }


def test_a_short_list_is_drawn_whole() -> None:
    cells = rows_with(figures.attention_picture(attention(3, [1, 2, 0])), "probability")
    assert {(cell["slot"], cell["position"]): cell["probability"] for cell in cells} == {
        (slot, position): 0.5 if (slot, position) in {(1, 2), (2, 3), (3, 1)} else 0.25
        for slot in (1, 2, 3)
        for position in (1, 2, 3)
    }
    assert {(cell["slot"], cell["position"]) for cell in cells if cell["placed"]} == {(1, 2), (2, 3), (3, 1)}
    assert {cell["position"] for cell in cells if cell["clicked"] == "clicked"} == {2}


def test_of_a_long_list_the_first_positions_are_drawn_and_what_was_placed_and_the_rest_is_told() -> None:
    chart = figures.attention_picture(attention(110, [109, *range(109)]))
    cells = rows_with(chart, "probability")
    assert {cell["position"] for cell in cells} == {*range(1, 31), 110}
    assert {cell["slot"] for cell in cells} == set(range(1, 21))
    assert chart is not None
    subtitle = " ".join(chart.to_dict()["title"]["subtitle"])
    n_cut = 110 - 31
    assert "first 20 of 110 slots" in subtitle
    assert f"the other {n_cut} items have at most {n_cut * 0.5 / 109:.1%}" in subtitle


def test_an_empty_list_has_no_picture_and_a_single_item_has_one() -> None:
    assert figures.attention_picture(attention(0, [])) is None
    assert figures.attention_picture(attention(1, [0])) is not None


# Figure 3


def test_clicks_per_position_are_percentage_points_coloured_by_their_interval() -> None:
    ends = [(0.02, 0.01, 0.03), (-0.02, -0.03, -0.01), (0.01, -0.01, 0.03), (0.01, None, None), (None, None, None)]
    rows = [
        {"ranker": "mine", "position": n, "difference": middle, "low": low, "high": high}
        for n, (middle, low, high) in enumerate(ends, start=1)
    ]
    bars = rows_with(figures.difference_picture({"baseline": "base order", "rows": rows}), "difference")
    assert [(bar["position"], bar["difference"], bar["meaning"]) for bar in bars] == [
        (1, 2, "more clicks"),
        (2, -2, "fewer clicks"),
        (3, 1, "not told apart"),
        (4, 1, "not told apart"),
    ]
    assert figures.difference_picture({"baseline": "base order", "rows": []}) is None


# Clicks per position in a live experiment


def arm_row(arm: str, position: int, rate: float, half: float | None = 0.02) -> dict[str, Any]:
    ends = {"low": None, "high": None} if half is None else {"low": rate - half, "high": rate + half}
    return {"arm": arm, "position": position, "rate": rate, **ends}


def test_rates_are_drawn_in_percent_at_their_position_and_beside_those_of_the_other_arm() -> None:
    chart = figures.rate_picture(
        [arm_row("a", 1, 0.5), arm_row("a", 2, 0.25, half=None), arm_row("base", 1, 0.25)], control="base"
    )
    assert chart is not None
    drawn = chart.to_dict()
    points = {(one["arm"], one["position"]): one for one in next(iter(drawn["datasets"].values()))}
    assert [points[key]["rate"] for key in (("a", 1), ("a", 2), ("base", 1))] == [50, 25, 25]
    assert (points["a", 1]["low"], points["a", 1]["high"], points["a", 2]["low"]) == (48, 52, None)
    places = points["base", 1]["place"], points["a", 1]["place"]
    assert 0.5 < places[0] < 1 < places[1] < 1.5
    assert 1.5 < points["a", 2]["place"] < 2.5


def test_the_control_comes_first_and_has_its_own_colour_whatever_its_name() -> None:
    for control in ("a", "z"):
        chart = figures.rate_picture([arm_row(arm, 1, 0.5) for arm in ("a", "m", "z")], control=control)
        assert chart is not None
        scale = chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]
        assert scale["domain"][0] == control
        assert scale["range"][0] == "#222222"
        assert len(set(scale["range"])) == 3


def test_nothing_shown_is_no_picture() -> None:
    assert figures.rate_picture([], control="base") is None


# Curves and moves


def test_the_strong_line_is_the_mean_of_the_seeds_and_every_ranker_looks_different() -> None:
    rows = [
        {
            "run": "r",
            "ranker": f"ranker {n}",
            "seed": seed,
            "epoch": 1,
            "loss": None,
            "value": n + seed,
            "measure": "MAP",
        }
        for n in range(12)
        for seed in (0, 1, 5)
    ]
    chart = figures.learning_picture(rows)
    means = {row["ranker"]: row["value"] for row in rows_with(chart, "line") if row["line"] == "mean"}
    assert means == {f"ranker {n}": n + (0 + 1 + 5) / 3 for n in range(12)}
    assert chart is not None
    encoding = chart.to_dict()["spec"]["layer"][0]["encoding"]
    looks = zip(encoding["color"]["scale"]["range"], map(str, encoding["strokeDash"]["scale"]["range"]), strict=True)
    assert len(set(looks)) == 12


def test_moves_are_shares_of_the_clicked_and_of_the_other_items() -> None:
    rows = [
        {"change": 2, "count": 3, "clicked": True},
        {"change": -1, "count": 1, "clicked": True},
        {"change": 0, "count": 8, "clicked": False},
        {"change": 3, "count": 0, "clicked": False},
    ]
    bars = rows_with(figures.rank_change_picture({"ranker": "mine", "rows": rows}), "share")
    assert {(bar["bucket"], bar["share"], bar["meaning"]) for bar in bars if bar["items"]} == {
        ("+2", 3 / 4, "moved up"),
        ("−1", 1 / 4, "moved down"),
        ("0", 1, "stayed"),
    }


@pytest.mark.parametrize("furthest", [3, 10, 11, 60, 109, 5000])
def test_wide_moves_are_bucketed_and_none_is_lost(furthest: int) -> None:
    rows = [{"change": n, "count": 1, "clicked": True} for n in range(-furthest, furthest + 1)]
    bars = rows_with(figures.rank_change_picture({"ranker": "mine", "rows": rows}), "share")
    assert sum(bar["items"] for bar in bars) == 2 * furthest + 1
    assert len(bars) <= 2 * 11 + 1
    assert [bar["items"] for bar in bars if bar["bucket"] == "0"] == [1]


def test_a_few_far_moves_do_not_widen_the_buckets() -> None:
    rows = [{"change": n, "count": 100, "clicked": True} for n in range(-5, 6)]
    far = {"change": 90, "count": 1, "clicked": True}
    bars = rows_with(figures.rank_change_picture({"ranker": "mine", "rows": [*rows, far]}), "share")
    found = {bar["bucket"]: bar["items"] for bar in bars}
    assert (found["+5"], found["beyond +10"]) == (100, 1)


# Files


def test_a_chart_is_saved_by_suffix(tmp_path: Path) -> None:
    chart = figures.interval_picture(table_rows(MEANS), "A title")
    assert chart is not None
    assert figures.save(chart, tmp_path / "new" / "a.png").read_bytes().startswith(b"\x89PNG\r\n")
    svg = figures.save(chart, tmp_path / "a.svg").read_text()
    assert all(f">{word}<" in svg for word in ("A title", "above", "base order 0.500", "ceiling high 0.750"))
    assert json.loads(figures.save(chart, str(tmp_path / "a.json")).read_text()) == chart.to_dict()
    with pytest.raises(UsageError, match=r"a\.pdf"):
        figures.save(chart, tmp_path / "a.pdf")


def test_a_long_name_is_not_cut(tmp_path: Path) -> None:
    name = "MMR over the base order, with the trade-off that validation lists prefer"
    chart = figures.interval_picture(table_rows({name: 0.5, "other": 0.4}))
    assert chart is not None
    assert f">{name}<" in figures.save(chart, tmp_path / "a.svg").read_text()


def test_nothing_is_drawn_with_until_something_is_drawn() -> None:
    code = "import sys, seq2slate, seq2slate.cli; print({'altair', 'vl_convert', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
