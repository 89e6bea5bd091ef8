"""What an experiment says: against formulas on the raw rows, the bootstrap, and simulated tests."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats

from benchmarks.experiment import run_tests
from seq2slate.data.impressions import Impression
from seq2slate.errors import UsageError
from seq2slate.experiments.analysis import Rate, analyse, analysis_tables, compare_arms, parse_weights, sample_ratio
from seq2slate.experiments.counts import ArmCounts, Counts, Definition, PositionCounts
from seq2slate.experiments.statistics import confidence_sequence
from seq2slate.log.impression_log import open_log
from tests.test_cli import seq2slate

UNITS = st.lists(
    st.integers(1, 30).flatmap(lambda i: st.tuples(st.just(i), st.integers(0, i))), min_size=2, max_size=40
)


def counts_of(units: Any, slots: tuple[PositionCounts, ...] = ()) -> ArmCounts:
    """The counts of an arm from the slates and clicks of its units, one by one."""
    i = [int(slates) for slates, _ in units]
    c = [int(clicks) for _, clicks in units]
    squares = (sum(x * x for x in i), sum(x * x for x in c), sum(x * y for x, y in zip(i, c, strict=True)))
    return ArmCounts(len(i), sum(i), sum(c), *squares, fallbacks=0, positions=slots)


def naive_variance(units: Any) -> float:
    """The delta method, unit by unit: the variance of the mean residual over the mean number of slates."""
    slates, clicks = np.asarray(units, dtype=np.float64).T
    residuals = clicks - clicks.sum() / slates.sum() * slates
    return float(residuals.var(ddof=1) / len(slates) / slates.mean() ** 2)


# The formulas


@settings(max_examples=60, deadline=None)
@given(UNITS, UNITS)
def test_the_difference_equals_the_delta_method_on_the_units(treated: Any, control: Any) -> None:
    found = compare_arms(counts_of(treated), counts_of(control))
    variances = [naive_variance(units) for units in (treated, control)]
    if min(variances) < 1e-14:
        assert found is None or min(variances) > 0
        return
    assert found is not None
    rates = [sum(c for _, c in units) / sum(i for i, _ in units) for units in (treated, control)]
    half = stats.norm.ppf(0.975) * sum(variances) ** 0.5
    assert found.value == pytest.approx(rates[0] - rates[1], abs=1e-12)
    assert found.fixed_horizon.high - found.value == pytest.approx(half, rel=1e-6)
    assert found.fixed_horizon_p == pytest.approx(2 * stats.norm.sf(abs(found.value) / sum(variances) ** 0.5), rel=1e-6)
    back = compare_arms(counts_of(control), counts_of(treated))
    assert back is not None
    assert (back.fixed_horizon.low, back.fixed_horizon.high) == pytest.approx(
        (-found.fixed_horizon.high, -found.fixed_horizon.low)
    )
    assert found.always_valid is None, "with so few units there is no always-valid interval"
    many = compare_arms(counts_of(treated * 30), counts_of(control * 30))  # 60 to 1,200 units
    other = compare_arms(counts_of(control * 30), counts_of(treated * 30))
    assert many is not None
    assert many.always_valid is not None
    assert other is not None
    assert other.always_valid is not None
    assert (other.always_valid.low, other.always_valid.high) == pytest.approx(
        (-many.always_valid.high, -many.always_valid.low)
    )
    assert other.always_valid_p == pytest.approx(many.always_valid_p)


def test_several_arms_share_the_level() -> None:
    """With three comparisons, each holds at a third of the level: interval and p together."""
    rng = np.random.default_rng(4)
    units = {
        name: [(5, int(c)) for c in rng.binomial(5, rate, 400)]
        for name, rate in zip("abcd", (0.3, 0.3, 0.36, 0.5), strict=True)
    }
    arms = {"control" if name == "a" else name: counts_of(rows) for name, rows in units.items()}
    result = analyse(Counts("e", arms))
    for name in "bcd":
        alone, together = compare_arms(arms[name], arms["control"]), result.arm(name).against_control
        assert alone is not None
        assert together is not None
        assert alone.always_valid is not None
        assert alone.always_valid_p is not None
        assert together.always_valid is not None
        assert together.always_valid_p is not None
        assert together.fixed_horizon == alone.fixed_horizon
        assert together.always_valid_p == pytest.approx(min(1.0, 3 * alone.always_valid_p))
        assert together.always_valid.high > alone.always_valid.high
        assert (together.always_valid_p < 0.05) == (not together.always_valid.low <= 0 <= together.always_valid.high)


@pytest.mark.parametrize(("slates", "expected_lift"), [(5, 0.05), (20, 0.05), (20, 0.3), (50, 1.0)])
def test_looking_from_the_first_unit_on_finds_nothing_that_is_not_there(slates: int, expected_lift: float) -> None:
    rng = np.random.default_rng(slates)
    alarms = 0
    for _ in range(150):
        clicks = rng.binomial(slates, rng.beta(2, 5, (2, 160)))
        squares = [np.cumsum(one**2) for one in clicks]
        sums = [np.cumsum(one) for one in clicks]
        for n in range(2, 161, 2):
            arms = [
                ArmCounts(n, n * slates, int(c[n - 1]), n * slates**2, int(s[n - 1]), slates * int(c[n - 1]), 0, ())
                for c, s in zip(sums, squares, strict=True)
            ]
            found = compare_arms(arms[0], arms[1], expected_lift)
            if found is not None and found.always_valid_p is not None and found.always_valid_p < 0.05:
                alarms += 1
                break
    assert alarms / 150 <= 0.05


def test_large_counts_do_not_cancel() -> None:
    """A hundred million units with a million slates each, half of them with one click more than the others."""
    n, i, c = 10**8, 10**6, 10**5
    clicks, squares = n // 2 * (2 * c + 1), n // 2 * (c**2 + (c + 1) ** 2)
    arm = ArmCounts(n, n * i, clicks, n * i**2, squares, i * clicks, fallbacks=0, positions=())
    start = time.perf_counter()
    ctr = analyse(Counts("large", {"base": arm, "new": arm})).arm("new").ctr
    assert time.perf_counter() - start < 0.1
    assert ctr is not None
    assert ctr.interval is not None
    error = 0.5 / i / (n - 1) ** 0.5  # residuals of ±0.5 clicks
    assert ctr.interval.high - ctr.value == pytest.approx(stats.norm.ppf(0.975) * error, rel=1e-3)


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(-20, 20))
def test_the_always_valid_p_value_is_below_005_exactly_when_the_interval_leaves_out_zero(
    variance: float, tau: float, value: float
) -> None:
    interval, p = confidence_sequence(value, variance, tau)
    assert 0 <= p <= 1
    half = (interval.high - interval.low) / 2
    if abs(abs(value) - half) > 1e-9 * half:
        assert (p < 0.05) == (abs(value) > half)


def test_the_always_valid_p_value_is_the_inverse_of_the_mixture_of_likelihood_ratios() -> None:
    value, variance, tau = 0.8, 0.09, 0.5
    effects = np.linspace(-5, 5, 20_001)
    ratios = np.exp(value * effects / variance - effects**2 / (2 * variance))  # of N(effect, V) to N(0, V)
    mixture = np.trapezoid(ratios * stats.norm.pdf(effects, scale=tau), effects)
    assert confidence_sequence(value, variance, tau)[1] == pytest.approx(1 / mixture, rel=1e-6)


def test_the_always_valid_interval_is_narrowest_about_when_the_expected_effect_is_found() -> None:
    tau = 0.05
    shares = np.geomspace(0.01, 1, 2000)  # the standard error, as a share of tau
    widths = [confidence_sequence(0, (share * tau) ** 2, tau)[0].high / (share * tau) for share in shares]
    best = int(np.argmin(widths))
    assert widths[best] / stats.norm.ppf(0.975) == pytest.approx(1.55, abs=0.01)
    assert widths[best] * shares[best] == pytest.approx(1.07, abs=0.02)  # half the width is then about tau


@pytest.mark.parametrize(("clicks", "shown"), [(0, 10), (3, 10), (10, 10), (77, 1000)])
def test_positions_have_wilson_intervals(clicks: int, shown: int) -> None:
    alike, alone = (grouped(np.full(n, shown), np.full(n, clicks)) for n in (2, 1))  # groups that do not differ
    arm = counts_of([(5, 1), (5, 2)], (alike, PositionCounts(0, 0), alone))
    (result,) = analyse(Counts("e", {"a": arm})).arms
    expected = stats.binomtest(2 * clicks, 2 * shown).proportion_ci(method="wilson")
    ctr = result.positions[0].ctr
    assert ctr is not None
    assert ctr.interval is not None
    assert (ctr.interval.low, ctr.interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert result.positions[1].ctr is None
    assert result.positions[2].ctr == Rate(clicks / shown, None), "one group of units shows no spread"
    assert result.clicks_per_item == 3 / (3 * shown)


def grouped(i: Any, c: Any) -> PositionCounts:
    """A slot, from the slates and clicks of each group of units."""
    return PositionCounts(*map(int, (i.sum(), c.sum(), len(i), (i * i).sum(), (c * c).sum(), (i * c).sum())))


def test_intervals_of_positions_and_their_differences_hold_when_units_differ() -> None:
    rng = np.random.default_rng(3)
    covered, difference_covered, narrow = [], [], []
    for _ in range(400):
        slots = []
        for _ in range(2):
            slates = rng.integers(1, 30, size=(64, 5))  # 64 groups of five units, each with a rate of its own
            clicks = rng.binomial(slates, rng.beta(2, 6, size=slates.shape))
            slots.append(grouped(slates.sum(axis=1), clicks.sum(axis=1)))
        a, b = (counts_of([(5, 1), (5, 2)], (slot,)) for slot in slots)
        (control,), (treated,) = (arm.positions for arm in analyse(Counts("e", {"base": a, "new": b})).arms)
        assert control.ctr is not None
        assert control.ctr.interval is not None
        assert treated.against_control is not None
        covered.append(control.ctr.interval.low <= 0.25 <= control.ctr.interval.high)
        between = treated.against_control.interval
        difference_covered.append(between.low <= 0 <= between.high)
        alone = stats.binomtest(control.clicks, control.impressions).proportion_ci(method="wilson")
        narrow.append(alone.low <= 0.25 <= alone.high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.03)
    assert np.mean(difference_covered) == pytest.approx(0.95, abs=0.03)
    assert np.mean(narrow) < 0.8  # to take the slates for independent


def test_a_difference_of_positions_is_newcombes() -> None:
    halves = ((70, 56), (80, 48))  # two groups of units each, alike: no more spread than chance has
    one, other = (
        counts_of([(5, 1), (5, 2)], (PositionCounts(n, c, 2, n**2 // 2, c**2 // 2, n * c // 2),)) for n, c in halves
    )
    difference = analyse(Counts("e", {"new": one, "base": other})).arm("new").positions[0].against_control
    assert difference is not None  # 56/70 − 48/80, the example of Newcombe (1998): 0.0524 to 0.3339
    found = (difference.value, difference.interval.low, difference.interval.high)
    assert found == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


# Sample ratio


@pytest.mark.parametrize("weights", [None, {"a": 2, "b": 2, "c": 2}, {"a": 1, "b": 2, "c": 1}])
def test_the_sample_ratio_is_a_chi_square_test(weights: dict[str, float] | None) -> None:
    units = {"a": 1010, "b": 1950, "c": 1040}
    shares = np.array([1, 1, 1] if weights is None else list(weights.values()))
    expected = stats.chisquare(list(units.values()), 4000 * shares / shares.sum())
    found = sample_ratio(units, weights)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.known == (weights is not None)
    assert found.mismatch == (weights is not None and weights["b"] == 2 == weights["a"]), (
        "unknown weights accuse nobody"
    )


def test_an_arm_without_units_or_without_weight_is_noticed() -> None:
    assert sample_ratio({"a": 100}, {"a": 1, "b": 1}).mismatch
    assert sample_ratio({"a": 100, "b": 1}, {"a": 1, "b": 0}).p_value == 0
    assert sample_ratio({"a": 100, "b": 0}, {"a": 1, "b": 0}).p_value is None
    assert sample_ratio({"a": 100}).p_value is None
    assert sample_ratio({"a": 0, "b": 0}).p_value is None


# What can be missing


@pytest.mark.parametrize("units", [[], [(3, 1)], [(2, 0), (5, 0)], [(1, 1), (2, 2)]])
def test_an_arm_without_spread_has_no_interval(units: Any) -> None:
    usual = counts_of([(3, 1), (4, 2), (2, 0)])
    for arms in ({"control": usual, "new": counts_of(units)}, {"control": counts_of(units), "new": usual}):
        result = analyse(Counts("e", arms))
        assert result.arm("new").against_control is None
        json.loads(result.to_json())
        Console(width=200, quiet=True).print(analysis_tables(result))
    ctr = analyse(Counts("e", {"a": counts_of(units)})).arm("a").ctr
    assert (ctr is None) if not units else (ctr is not None and ctr.interval is None)


def test_arms_of_all_kinds_stand_side_by_side() -> None:
    usual = counts_of([(3, 1), (4, 2), (2, 0)], (PositionCounts(9, 2), PositionCounts(9, 1)))
    arms = {"new": usual, "empty": counts_of([]), "base": usual, "one": counts_of([(1, 0)], (PositionCounts(1, 0),))}
    result = analyse(Counts("e", arms))
    assert [arm.arm for arm in result.arms] == ["base", "new", "empty", "one"]
    assert [arm.against_control is not None for arm in result.arms] == [False, True, False, False]
    alone = analyse(Counts("e", {"new": usual, "base": usual})).arm("new")
    assert result.arm("new") == alone


def test_invalid_input_is_refused() -> None:
    usual = counts_of([(3, 1), (4, 2), (2, 0)])
    with pytest.raises(UsageError, match="no slates"):
        analyse(Counts("e", {}))
    with pytest.raises(UsageError, match=r"--control ARM\), one of x, y"):
        analyse(Counts("e", {"x": usual, "y": usual}))
    with pytest.raises(UsageError, match="no arm 'z'"):
        analyse(Counts("e", {"x": usual}), control="z")
    with pytest.raises(UsageError, match="no weight for the arm 'x'"):
        analyse(Counts("e", {"x": usual}), weights={"y": 1})
    with pytest.raises(UsageError, match="not all 0"):
        analyse(Counts("e", {"x": usual}), weights={"x": 0})
    with pytest.raises(UsageError, match="expected lift"):
        analyse(Counts("e", {"x": usual}), expected_lift=0)
    with pytest.raises(UsageError, match="'b' does not"):
        parse_weights("a=1,b")


def test_the_tables_show_names_as_they_are() -> None:
    arm = counts_of([(3, 1), (4, 2), (2, 0)], (PositionCounts(9, 3),))
    console = Console(width=100)
    with console.capture() as captured:
        console.print(analysis_tables(analyse(Counts("e", {"[red]": arm, "base": arm}))))
    lines = [line.split() for line in captured.get().splitlines()]
    assert [line[0] for line in lines if line[1:4] == ["3", "9", "0"]] == ["base", "[red]"]
    assert ["position", "base", "[red]"] in lines
    assert sum(line[1:3] == ["+0.000", "+0.0%"] for line in lines) == 1


# From a real log


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 600 slates: units come unequally often, and click unequally."""
    path = tmp_path_factory.mktemp("log") / "log.db"
    rng = np.random.default_rng(5)
    activity, readiness = rng.gamma(1.0, 1.0, 80), rng.beta(1, 3, 80)
    with open_log(path) as store:
        for number in range(600):
            unit = int(rng.choice(80, p=activity / activity.sum()))
            arm = "new" if unit % 2 else "base"
            shown = rng.permutation(5)[: rng.integers(1, 4)].tolist()
            one = Impression(
                slate_id=f"s{number}",
                at=float(number),
                unit=f"u{unit}",
                experiment="autumn",
                arm=arm,
                items=list("abcde"),
                shown=shown,
                features=np.zeros((5, 1), dtype=np.float32),
                latency_ms=1.0,
                fallback=None if number % 50 else "late",
            )
            store.add_impression(one)
            for item in shown:
                if rng.random() < readiness[unit]:
                    store.add_click(one.slate_id, one.items[item], number + 0.5)
    return path


def raw_units(path: Path) -> dict[str, dict[str, list[int]]]:
    """Slates and clicks of each unit, by arm, counted from the rows."""
    units: dict[str, dict[str, list[int]]] = {"base": {}, "new": {}}
    with open_log(path) as store:
        for logged in store.impressions():
            row = units[logged.arm].setdefault(logged.unit, [0, 0])
            row[0] += 1
            row[1] += len(logged.clicks)
    return units


def test_the_running_counts_give_what_the_raw_rows_give(log: Path) -> None:
    with open_log(log) as store:
        result = analyse(store.counts("autumn"))
        rows = list(store.impressions())
    units = {arm: np.array(list(found.values())) for arm, found in raw_units(log).items()}
    for arm in ("base", "new"):
        found, table = result.arm(arm), units[arm]
        mine = [row for row in rows if row.arm == arm]
        assert (found.units, found.impressions, found.clicks) == (len(table), *table.sum(axis=0).tolist())
        assert found.fallbacks == sum(row.fallback is not None for row in mine)
        assert found.clicks_per_item == found.clicks / sum(len(row.shown) for row in mine)
        for slot in found.positions:
            shown = [row for row in mine if len(row.shown) >= slot.position]
            clicks = sum(row.shown[slot.position - 1] in row.clicks for row in shown)
            assert (slot.impressions, slot.clicks) == (len(shown), clicks)
    difference = result.arm("new").against_control
    assert difference is not None
    half = stats.norm.ppf(0.975) * (naive_variance(units["new"]) + naive_variance(units["base"])) ** 0.5
    assert difference.fixed_horizon.high - difference.value == pytest.approx(half, rel=1e-9)

    rng = np.random.default_rng(0)  # units drawn again, arm by arm
    rates = []
    for arm in ("new", "base"):
        drawn = units[arm][rng.integers(len(units[arm]), size=(20_000, len(units[arm])))].sum(axis=1)
        rates.append(drawn[:, 1] / drawn[:, 0])
    assert (rates[0] - rates[1]).std() == pytest.approx(half / stats.norm.ppf(0.975), rel=0.1)


def test_the_command_prints_the_analysis(log: Path) -> None:
    with open_log(log) as store:
        expected = analyse(store.counts("autumn"), weights={"base": 1, "new": 2}, control="new")
    done = seq2slate("experiment", log, "--control", "new", "--weights", "base=1,new=2", "--json")
    assert json.loads(done.out) == json.loads(expected.to_json())
    assert json.loads(done.out)["sample_ratio"]["mismatch"] is expected.sample_ratio.mismatch
    assert "autumn" in seq2slate("experiment", log).out
    assert "Sample ratio mismatch: the arms did not get the units" in " ".join(
        seq2slate("experiment", log, "--weights", "base=9,new=1").out.split()
    )


def test_the_command_uses_what_the_service_noted(log: Path) -> None:
    with open_log(log) as store:
        store.note(Definition("autumn", "new", {"base": 9.0, "new": 1.0})).result()
    found = json.loads(seq2slate("experiment", log, "--json").out)
    assert (found["control"], found["sample_ratio"]["known"], found["sample_ratio"]["mismatch"]) == ("new", True, True)
    chosen = json.loads(seq2slate("experiment", log, "--json", "--control", "base", "--weights", "base=1,new=1").out)
    assert (chosen["control"], chosen["sample_ratio"]["mismatch"]) == ("base", False)
    with open_log(log) as store:
        store.note(Definition("autumn", "base", {"base": 1.0, "new": 1.0})).result()
        assert store.definition("autumn") == Definition("autumn", "base", {"base": 1.0, "new": 1.0})
        assert store.definition("spring") is None
        assert "base (" not in seq2slate("experiment", log).out
        named = Definition("autumn", "base", {"base": 1.0, "new": 1.0}, {"base": "base", "new": "model-2026-03"})
        store.note(named).result()
        assert store.definition("autumn") == named
    told = seq2slate("experiment", log).out
    assert "base (base order)" in told
    assert "new (model-2026-03)" in told
    assert json.loads(seq2slate("experiment", log, "--json").out)["models"] == named.models


def test_the_command_says_what_is_wrong(log: Path, tmp_path: Path) -> None:
    assert "no slates of an experiment 'spring'" in seq2slate("experiment", log, "--experiment", "spring", code=2).err
    open_log(tmp_path / "empty.db").close()
    assert "--experiment" in seq2slate("experiment", tmp_path / "empty.db", code=2).err
    assert "error" in seq2slate("experiment", tmp_path / "missing.db", code=2).err


# Simulated tests; benchmarks/experiment.py has more of them


def test_without_a_difference_the_intervals_hold_what_they_promise() -> None:
    tests = run_tests(runs=400, units=700, lift=0, seed=11, looks=50, expected_lift=0.3)
    assert abs(tests.fixed_horizon[:, -1].mean() - 0.05) <= 0.03
    assert tests.always_valid.any(axis=1).mean() <= 0.05
    assert tests.independent[:, -1].mean() > 0.12  # to take the slates of a unit for independent is wrong,
    assert tests.fixed_horizon.any(axis=1).mean() > 0.2  # and so is it to look at a fixed interval again and again


def test_a_difference_is_found() -> None:
    tests = run_tests(runs=40, units=2500, lift=0.25, seed=12, looks=10)
    assert tests.always_valid[:, -1].mean() > 0.9
