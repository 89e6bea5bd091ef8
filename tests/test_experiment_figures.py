"""The picture of a live experiment says what its rows say."""

from typing import Any

from seq2slate.evaluation.experiment_figures import rate_picture


def row(arm: str, position: int, rate: float, half: float | None = 0.02) -> dict[str, Any]:
    ends = {"low": None, "high": None} if half is None else {"low": rate - half, "high": rate + half}
    return {"arm": arm, "position": position, "rate": rate, **ends}


def test_rates_are_drawn_in_percent_at_their_position_and_beside_those_of_the_other_arm() -> None:
    chart = rate_picture([row("a", 1, 0.5), row("a", 2, 0.25, half=None), row("base", 1, 0.25)], control="base")
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
        chart = rate_picture([row(arm, 1, 0.5) for arm in ("a", "m", "z")], control=control)
        assert chart is not None
        scale = chart.to_dict()["layer"][0]["encoding"]["color"]["scale"]
        assert scale["domain"][0] == control
        assert scale["range"][0] == "#222222"
        assert len(set(scale["range"])) == 3


def test_nothing_shown_is_no_picture() -> None:
    assert rate_picture([], control="base") is None
