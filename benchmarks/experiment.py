"""Simulated experiments: error rates and power of the intervals, and the sample sizes that they need.

`python -m benchmarks.experiment` writes benchmarks/experiment.json and the pictures of docs/experiments.md. Units
return unequally often and differ in their click rates, so the slates of a unit are not independent.

- A/A: 400 tests of an arm against itself, with 50 looks each.
- A/B: 200 tests with a click rate that is 5% higher, and 200 with equal rates, with 50 looks each.
- Interleaving: two orders of synthetic lists, compared by an A/B test and by interleaving, with the same click model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from seq2slate import RidgeRanker, click_model, make_synthetic_lists, reorder_lists
from seq2slate.data.lists import IntArray
from seq2slate.data.ranker import NO_ITEM, slates_from_scores
from seq2slate.evaluation.figures import GAIN, LOSS, NEUTRAL, save, themed
from seq2slate.experiments.analysis import EXPECTED_LIFT, compare_arms
from seq2slate.experiments.counts import ArmCounts
from seq2slate.experiments.interleaving import interleave, preference_from_clicks
from seq2slate.experiments.statistics import Interval
from seq2slate.simulation.visits import Draws, Facts, scan

Doubles = npt.NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[1]
CTR, LIFT = 0.3, 0.05
LOOKS = 50
Z = float(ndtri(0.975))


# Units that return


def simulate_arm(rng: np.random.Generator, *, units: int, ctr: float, looks: int, visits: float = 8) -> list[ArmCounts]:
    """Return the counts of an arm at every look.

    Units arrive uniformly over the test and return at random: some once, some dozens of times, `visits` times on
    average (visits after the end do not count). Their click rates have a Beta distribution around `ctr`.
    """
    n_visits = rng.geometric(1 / visits, units)
    unit = np.repeat(np.arange(units), n_visits)
    first = np.cumsum(n_visits) - n_visits
    visit = np.arange(len(unit)) - first[unit]  # how many slates the unit has seen before
    gaps = np.cumsum(rng.exponential(0.05, len(unit)))
    time = rng.random(units)[unit] + gaps - gaps[first][unit]
    click = rng.random(len(unit)) < rng.beta(4 * ctr, 4 * (1 - ctr), units)[unit]
    total = np.cumsum(click)
    before: IntArray = total - click
    clicks_before = before - before[first][unit]
    seen = time < 1
    look = (time[seen] * looks).astype(np.int64)
    visit, click, clicks_before = visit[seen], click[seen], clicks_before[seen]
    changes = (  # of the sums over units, made by each slate
        visit == 0,
        np.ones(len(visit)),
        click,
        2 * visit + 1,
        click * (2 * clicks_before + 1),
        clicks_before + click * (visit + 1),
    )
    sums = np.cumsum([np.bincount(look, change, minlength=looks) for change in changes], axis=1).astype(np.int64)
    return [_counts(row) for row in sums.T.tolist()]


def _counts(sums: Sequence[int]) -> ArmCounts:
    """Return counts from units and the sums over them of i, c, i², c² and ic."""
    units, impressions, clicks, impressions_squared, clicks_squared, product = sums
    return ArmCounts(units, impressions, clicks, impressions_squared, clicks_squared, product, 0, ())


def simulate_test(
    rng: np.random.Generator, *, units: int, lift: float, looks: int = LOOKS
) -> tuple[list[ArmCounts], list[ArmCounts]]:
    """Return the counts of a treated arm and of a control, with that many units each, at every look."""
    treated = simulate_arm(rng, units=units, ctr=CTR * (1 + lift), looks=looks)
    return treated, simulate_arm(rng, units=units, ctr=CTR, looks=looks)


@dataclass(frozen=True)
class Tests:
    """Which tests (R, looks) are significant at each look, and after how many slates (looks,) on average."""

    fixed_horizon: npt.NDArray[np.bool_]
    always_valid: npt.NDArray[np.bool_]
    independent: npt.NDArray[np.bool_]
    """By an interval that ignores the clustering of slates by unit."""
    impressions: Doubles

    def rates(self) -> dict[str, float | None]:
        """Return the shares of tests that are significant at the last look, and at any look."""
        return {
            "fixed-horizon, last look": float(self.fixed_horizon[:, -1].mean()),
            "fixed-horizon, any look": float(self.fixed_horizon.any(axis=1).mean()),
            "fixed-horizon, slates as independent, last look": float(self.independent[:, -1].mean()),
            "always-valid, any look": float(self.always_valid.any(axis=1).mean()),
        }


def run_tests(
    *, runs: int, units: int, lift: float, seed: int, looks: int = LOOKS, expected_lift: float = EXPECTED_LIFT
) -> Tests:
    """Simulate tests, and analyse each of them at every look."""
    rng = np.random.default_rng(seed)
    found = np.zeros((3, runs, looks), dtype=bool)
    impressions = np.zeros((runs, looks))
    for run in range(runs):
        arms = simulate_test(rng, units=units, lift=lift, looks=looks)
        for look, (treated, control) in enumerate(zip(*arms, strict=True)):
            impressions[run, look] = treated.impressions + control.impressions
            difference = compare_arms(treated, control, expected_lift)
            if difference is not None:  # the first units may have no click at all
                found[:, run, look] = (
                    excludes_zero(difference.fixed_horizon),
                    excludes_zero(difference.always_valid),
                    abs(difference.value) > Z * independent_error(treated, control),
                )
    return Tests(found[0], found[1], found[2], impressions.mean(axis=0))


def excludes_zero(interval: Interval | None) -> bool:
    """Say whether an interval is significant."""
    return interval is not None and not interval.low <= 0 <= interval.high


def independent_error(*arms: ArmCounts) -> float:
    """Return the standard error of the difference of two arms as if all slates were independent."""
    rates = [(arm.clicks / arm.impressions, arm.impressions) for arm in arms]
    return sqrt(sum(rate * (1 - rate) / n for rate, n in rates))


# Two orders of the same lists, compared by an A/B test and by interleaving


@dataclass(frozen=True)
class Visits:
    """Requests for slates: the unit and the list of each."""

    unit: IntArray
    """(V,)"""
    examination: Doubles
    """(V,) the unit's factor on every examination probability, from 0 to 1."""
    lists: IntArray
    """(V,)"""

    @classmethod
    def draw(cls, rng: np.random.Generator, units: int, n_lists: int, visits: float = 8) -> Visits:
        """Draw units that return unequally often."""
        unit = np.repeat(np.arange(units), rng.geometric(1 / visits, units))
        examination = rng.beta(2, 2, units)[unit]
        return cls(unit, examination, rng.integers(n_lists, size=len(unit)))


class Audience:
    """A click model, and lists with a better and a worse order."""

    def __init__(self, n_lists: int, *, k: int, noise: float, seed: int):
        lists = reorder_lists(
            RidgeRanker().fit(make_synthetic_lists(2000, items=20, world="topics", features=30, seed=seed)),
            make_synthetic_lists(n_lists, items=20, world="topics", features=30, seed=seed + 1),
        )
        self.user = click_model("position", eta=0.5)
        batch = lists.batch()
        rng = np.random.default_rng(seed)
        positions = np.broadcast_to(np.arange(batch.n_slots), batch.mask.shape)
        self.relevance = (batch.labels >= self.user.relevant_from).astype(np.float64)
        self.better = slates_from_scores(-positions.astype(np.float64), batch.mask)[:, :k]
        self.worse = slates_from_scores(rng.normal(-positions, noise), batch.mask)[:, :k]

    def clicks(self, visits: Visits, slates: IntArray, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """Return the clicks (V, K) on a slate for each visit."""
        draws = Draws(*rng.random((2, *slates.shape)))
        draws = draws._replace(examine=draws.examine / visits.examination[:, None])
        return scan(self.user, slates, Facts(self.relevance[visits.lists]), draws).clicks


def unit_counts(audience: Audience, visits: Visits, order: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the slates and clicks (U, 2) of units that are shown one of the two orders."""
    clicks = audience.clicks(visits, order[visits.lists], rng).sum(axis=1)
    return np.stack([np.bincount(visits.unit), np.bincount(visits.unit, clicks).astype(np.int64)], axis=1)


def interleaved(audience: Audience, visits: Visits, rng: np.random.Generator) -> IntArray:
    """Show every unit interleaved slates; return its clicks (U, 2) credited to the worse and to the better order."""
    pairs = zip(audience.worse[visits.lists].tolist(), audience.better[visits.lists].tolist(), strict=True)
    drafts = [
        interleave([i for i in worse if i >= 0], [i for i in better if i >= 0], len(worse), rng)
        for worse, better in pairs
    ]
    slates = np.full((len(drafts), audience.worse.shape[1]), NO_ITEM)
    by_better = np.zeros(slates.shape, dtype=bool)
    for number, (slate, teams) in enumerate(drafts):
        slates[number, : len(slate)] = slate
        by_better[number, : len(teams)] = [team == "b" for team in teams]
    clicks = audience.clicks(visits, slates, rng)
    credits_of_visits = ((clicks & ~by_better).sum(axis=1), (clicks & by_better).sum(axis=1))
    return np.stack([np.bincount(visits.unit, won).astype(np.int64) for won in credits_of_visits], axis=1)


def arm_counts(table: IntArray) -> ArmCounts:
    """Return the counts of an arm from the slates and clicks (U, 2) of its units."""
    slates, clicks = table.T
    sums = (slates.sum(), clicks.sum(), (slates**2).sum(), (clicks**2).sum(), (slates * clicks).sum())
    return _counts([len(table), *map(int, sums)])


def power_of_arms(better: IntArray, worse: IntArray, n: int, rng: np.random.Generator, runs: int) -> float:
    """Return the share of A/B tests that find the better order, with n units drawn and assigned at random."""
    found = 0
    for _ in range(runs):
        n_treated = rng.binomial(n, 0.5)
        treated = arm_counts(better[rng.integers(len(better), size=n_treated)])
        control = arm_counts(worse[rng.integers(len(worse), size=n - n_treated)])
        difference = compare_arms(treated, control)
        found += difference is not None and difference.fixed_horizon.low > 0
    return found / runs


def power_of_interleaving(credits_of_units: IntArray, n: int, rng: np.random.Generator, runs: int) -> float:
    """Return the share of interleaving tests that find the better order, with n units drawn at random."""
    drawn = (credits_of_units[rng.integers(len(credits_of_units), size=n)] for _ in range(runs))
    found = (preference_from_clicks(units).fixed_horizon for units in drawn)
    return sum(interval is not None and interval.low > 0 for interval in found) / runs


def study_interleaving(seed: int, *, units: int = 15_000, runs: int = 400) -> dict[str, Any]:
    """Return how many slates an A/B test and interleaving need for a power of 80% at the level of 5%.

    Every unit is shown both orders with common random numbers, so the true difference is known precisely. A test draws
    its units from these and takes the clicks of each in the arm to which it is assigned.
    """
    rng = np.random.default_rng(seed)
    audience = Audience(3000, k=10, noise=4.0, seed=seed)
    visits = Visits.draw(rng, units, 3000)
    per_unit = len(visits.unit) / units
    better, worse = (
        unit_counts(audience, visits, order, np.random.default_rng(seed + 1))
        for order in (audience.better, audience.worse)
    )
    won = interleaved(audience, visits, rng)
    difference, preferred = compare_arms(arm_counts(better), arm_counts(worse)), preference_from_clicks(won)
    assert difference is not None
    assert preferred.estimate is not None
    assert preferred.fixed_horizon is not None
    needed = {  # units: the squared standard error falls with their number, and the A/B test has two arms of them
        "A/B test": 2 * units * needed_share(difference.value, difference.value - difference.fixed_horizon.low),
        "interleaving": units * needed_share(preferred.estimate, preferred.estimate - preferred.fixed_horizon.low),
    }
    powers = []
    for share in (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0):
        for method, n_units in needed.items():
            n = round(share * n_units)
            power = (
                power_of_arms(better, worse, n, rng, runs)
                if method == "A/B test"
                else power_of_interleaving(won, n, rng, runs)
            )
            powers.append({"method": method, "slates": n * per_unit, "power": power})
    return {
        "lift": difference.lift,
        "preference": preferred.estimate,
        "slates needed": {method: n_units * per_unit for method, n_units in needed.items()},
        "ratio": needed["A/B test"] / needed["interleaving"],
        "powers": powers,
    }


def needed_share(effect: float, half_width: float) -> float:
    """Return by what factor the number of units must change for a power of 80%, given half of a 95% interval."""
    return ((Z + float(ndtri(0.8))) / Z * half_width / effect) ** 2


# Pictures


def waiting_picture(same: Tests, better: Tests) -> Any:
    """Draw the share of tests that are significant by each look."""
    lines = {
        f"{LIFT:.0%} better, always-valid interval": (better.always_valid, better, True),
        f"{LIFT:.0%} better, fixed-horizon interval at this look only": (better.fixed_horizon, better, False),
        "no difference, fixed-horizon interval at every look": (same.fixed_horizon, same, True),
        "no difference, always-valid interval": (same.always_valid, same, True),
    }
    rows = []
    for name, (found, tests, at_some_look) in lines.items():
        shares = (np.maximum.accumulate(found, axis=1) if at_some_look else found).mean(axis=0)
        rows += [
            {"line": name, "slates": slates, "share": share}
            for slates, share in zip(tests.impressions.tolist(), shares.tolist(), strict=True)
        ]
    limit = alt.Chart(alt.InlineData(values=[{"share": 0.05}])).mark_rule(color=NEUTRAL, strokeDash=[2, 2])
    chart = _lines(rows, list(lines), [GAIN, "#56B4E9", LOSS, NEUTRAL], "significant tests")
    n_tests, n_looks = same.fixed_horizon.shape
    return themed(
        alt.layer(chart, limit.encode(y="share:Q")),
        "Peeking at a running experiment",
        f"{n_tests} simulated tests each, {n_looks} looks; the dotted line is the level of 5%.",
    )


def interleaving_picture(study: dict[str, Any]) -> Any:
    """Draw the power of both methods against the number of slates."""
    rows = [{"line": row["method"], "slates": row["slates"], "share": row["power"]} for row in study["powers"]]
    chart = _lines(rows, ["interleaving", "A/B test"], [GAIN, LOSS], "power", log=True)
    return themed(
        chart,
        "A/B test or interleaving",
        f"An order with {study['lift']:.1%} more clicks; 95% fixed-horizon intervals; 400 tests a point.",
    )


def _lines(rows: Sequence[dict[str, Any]], names: list[str], colours: list[str], title: str, log: bool = False) -> Any:
    legend = alt.Legend(title=None, orient="bottom", columns=2, symbolType="stroke", symbolStrokeWidth=3)
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale()
    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_line(strokeWidth=2.5, point=log)
        .encode(
            x=alt.X("slates:Q", title="slates", scale=scale, axis=alt.Axis(format=",d", tickCount=8)),
            y=alt.Y("share:Q", title=title, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format=".0%")),
            color=alt.Color("line:N", scale=alt.Scale(domain=names, range=colours), legend=legend),
        )
        .properties(width=640, height=320)
    )


def main() -> None:
    """Run all studies, print and write them."""
    same = {
        f"tuned for {lift:.0%}": run_tests(runs=400, units=4000, lift=0, seed=1, expected_lift=lift).rates()
        for lift in (EXPECTED_LIFT, 0.15, 1.0)
    }
    waiting = [run_tests(runs=200, units=20_000, lift=lift, seed=2) for lift in (0.0, LIFT)]
    interleaving = study_interleaving(seed=3)
    found = {
        "400 tests without difference, 4,000 units an arm": same,
        "200 tests, 20,000 units an arm, by lift": {
            f"{lift:.0%}": tests.rates() | slates_until_found(tests)
            for lift, tests in zip((0.0, LIFT), waiting, strict=True)
        },
        "interleaving": interleaving,
    }
    text = json.dumps(found, indent=1)
    print(text)
    (ROOT / "benchmarks" / "experiment.json").write_text(text + "\n")
    save(waiting_picture(*waiting), ROOT / "docs" / "experiment-looks.svg")
    save(interleaving_picture(interleaving), ROOT / "docs" / "experiment-interleaving.svg")


def slates_until_found(tests: Tests) -> dict[str, float | None]:
    """Return the slates until half and 80% of the tests have stopped, and until a fixed horizon has a power of 80%."""
    stopped = np.maximum.accumulate(tests.always_valid, axis=1).mean(axis=0)
    planned = tests.fixed_horizon.mean(axis=0)
    slates = tests.impressions

    def first(shares: Doubles, share: float) -> float | None:
        return float(slates[(shares >= share).argmax()]) if (shares >= share).any() else None

    return {
        "slates until half have stopped, always-valid": first(stopped, 0.5),
        "slates until 80% have stopped, always-valid": first(stopped, 0.8),
        "slates for a power of 80%, fixed-horizon": first(planned, 0.8),
        "slates at the end": float(slates[-1]),
    }


if __name__ == "__main__":
    main()
