"""Numbers, times and the verdict of an experiment, in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias
from urllib.parse import quote

from seq2slate.experiments.analysis import Analysis, ArmResult, PositionDifference, Rate
from seq2slate.experiments.counts import Counts
from seq2slate.experiments.interleaving import Preference
from seq2slate.experiments.statistics import ALPHA, MIN_UNITS, Interval
from seq2slate.html import Html, element

NOTHING = "–"
Tone: TypeAlias = Literal["gain", "loss", "open"]
MANY_FALLBACKS = 0.05
"""Above this share of an arm's slates, its clicks say little of its model."""
_LEAST_P = 0.0001


def count(number: int) -> str:
    """Return an integer with thousands separators.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def per_100(rate: float | None, *, signed: bool = False) -> str:
    """Return a rate as clicks per 100 slates.

    >>> per_100(0.34945), per_100(0.00012), per_100(-0.01, signed=True), per_100(None)
    ('34.95', '0.012', '−1.00', '–')
    """
    if rate is None:
        return NOTHING
    value = 100 * rate
    text = f"{abs(value):.2f}" if abs(value) >= 0.1 or not value else f"{abs(value):.2g}"
    return _sign(value, signed) + text


def span(interval: Interval | None, *, signed: bool = False) -> str:
    """Return an interval of rates, as clicks per 100 slates.

    >>> span(Interval(0.1, 0.2))
    '10.00 … 20.00'
    """
    if interval is None:
        return NOTHING
    return f"{per_100(interval.low, signed=signed)} … {per_100(interval.high, signed=signed)}"


def with_interval(found: Rate | PositionDifference | None, *, signed: bool = False) -> str:
    """Return a rate as clicks per 100 slates, with its interval if it has one.

    >>> with_interval(Rate(0.15, Interval(0.1, 0.2))), with_interval(None)
    ('15.00 (10.00 … 20.00)', '–')
    """
    if found is None:
        return NOTHING
    text = per_100(found.value, signed=signed)
    return text if found.interval is None else f"{text} ({span(found.interval, signed=signed)})"


def percent(share: float | None, *, signed: bool = False) -> str:
    """Return a share in percent.

    >>> percent(0.123), percent(-0.04, signed=True), percent(0.0004), percent(0)
    ('12.3%', '−4%', '0.04%', '0%')
    """
    if share is None:
        return NOTHING
    value = 100 * share
    digits = "0" if not value else f"{abs(value):.1f}".removesuffix(".0") if abs(value) >= 1 else f"{abs(value):.2g}"
    return f"{_sign(value, signed)}{digits}%"


def percent_span(interval: Interval | None) -> str:
    """Return an interval of signed shares, in percent.

    >>> percent_span(Interval(-0.04, 0.123))
    '−4% … +12.3%'
    """
    if interval is None:
        return NOTHING
    return f"{percent(interval.low, signed=True)} … {percent(interval.high, signed=True)}"


def p_value(p: float | None) -> str:
    """Return a p-value, to as many digits as anybody acts on.

    >>> p_value(0.0314), p_value(1e-9), p_value(1.0), p_value(None)
    ('0.031', '< 0.0001', '1', '–')
    """
    if p is None:
        return NOTHING
    return f"< {_LEAST_P}" if p < _LEAST_P else f"{p:.2g}"


def p_is(p: float | None) -> str:
    """Return a p-value as part of a sentence.

    >>> p_is(0.02), p_is(1e-9)
    ('p = 0.02', 'p < 0.0001')
    """
    text = p_value(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def milliseconds(value: float) -> str:
    """Return a duration.

    >>> milliseconds(0.734), milliseconds(12.34), milliseconds(250.4)
    ('0.73 ms', '12.3 ms', '250 ms')
    """
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} ms"


def plural(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "slate"), plural(1200, "slate")
    ('1 slate', '1,200 slates')
    """
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def moment(at: float) -> Html:
    """Return a Unix time as an element; one that no calendar has stays a number."""
    try:
        when = datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError, ValueError):
        return element("span", f"{at:g}")
    return element("time", f"{when:%Y-%m-%d %H:%M:%S} UTC", datetime=when.isoformat(timespec="seconds"))


def clock(minute: int) -> str:
    """Return the time of day of a minute since 1970, UTC.

    >>> clock(61)
    '01:01'
    """
    return f"{minute // 60 % 24:02d}:{minute % 60:02d}"


def address(path: str, **query: str | int | None) -> str:
    """Return a link within the service; parameters that are None are left out.

    >>> address("/", experiment="a b&c", refresh=None)
    '/?experiment=a%20b%26c'
    """
    given = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in query.items() if value is not None)
    return f"{path}?{given}" if given else path


def parse_int(text: str | None) -> int | None:
    """Return an integer of a query; None for anything else.

    >>> parse_int("7"), parse_int("-3"), parse_int("x"), parse_int("9" * 99), parse_int(None)
    (7, -3, None, None, None)
    """
    try:
        return int(text) if text is not None and len(text) < 10 else None
    except ValueError:
        return None


def _sign(value: float, signed: bool) -> str:
    return "−" if value < 0 else "+" if signed and value > 0 else ""


# Verdict


@dataclass(frozen=True)
class Sentence:
    """The verdict on an arm."""

    text: str
    tone: Tone


def verdict_sentences(analysis: Analysis) -> list[Sentence]:
    """Return a sentence for each arm besides the control, or one on what is missing; all are always valid together."""
    control, *others = analysis.arms
    if not any(arm.impressions for arm in analysis.arms):
        return [Sentence("No slates yet: nobody has seen this experiment.", "open")]
    if analysis.sample_ratio.mismatch:
        text = "No verdict: sample ratio mismatch. The arms did not get the units of their weights."
        return [Sentence(text, "open")]
    interleaved = [_preference(one) for one in analysis.preferences]
    if not others and interleaved:
        return interleaved
    if not others:
        rate = per_100(None if control.ctr is None else control.ctr.value)
        text = f"One arm, so nothing to compare: {control.arm} gets {rate} clicks per 100 slates."
        return [Sentence(text, "open")]
    return [*interleaved, *(_difference(arm, control) for arm in others)]


def verdict_tone(analysis: Analysis) -> Tone:
    """Return the tone of the whole verdict: a gain or a loss only if every significant sentence says so."""
    sure = {one.tone for one in verdict_sentences(analysis)} - {"open"}
    return sure.pop() if len(sure) == 1 else "open"


def _difference(arm: ArmResult, control: ArmResult) -> Sentence:
    difference = arm.against_control
    not_yet = f"{arm.arm} cannot be compared with {control.arm} yet"
    if difference is None:
        return Sentence(f"{not_yet}: too few units or clicks.", "open")
    interval, p = difference.always_valid, difference.always_valid_p
    if interval is None or p is None:
        return Sentence(f"{not_yet}: too few units; each of the two needs {MIN_UNITS}.", "open")
    if p >= ALPHA:
        low, high = (per_100(end, signed=True) for end in (interval.low, interval.high))
        range_ = f"between {low} and {high} clicks per 100 slates ({p_is(p)})"
        return Sentence(f"No significant difference between {arm.arm} and {control.arm} yet: {range_}.", "open")
    change = f"{percent(abs(difference.lift))} {'more' if difference.value > 0 else 'fewer'} clicks than {control.arm}"
    text = f"{arm.arm} gets {change} (always-valid {p_is(p)})."
    return Sentence(text, "gain" if difference.value > 0 else "loss")


def _preference(found: Preference) -> Sentence:
    """Say which of two arms is preferred on the slates that they fill together."""
    interval, p = found.always_valid, found.always_valid_p
    if found.estimate is None or interval is None or p is None:
        few = f"too few units have clicked; {MIN_UNITS} are needed"
        why = few if found.units < MIN_UNITS else "all units that clicked are alike"
        return Sentence(f"{found.b} cannot be compared with {found.a} yet: {why}.", "open")
    if p >= ALPHA:
        low, high = (percent(end, signed=True) for end in (interval.low, interval.high))
        range_ = f"the preference for {found.b} is between {low} and {high} ({p_is(p)})"
        return Sentence(f"No significant preference between {found.a} and {found.b} yet: {range_}.", "open")
    better, other, clicks = found.b, found.a, found.b_clicks
    if found.estimate < 0:
        better, other, clicks = found.a, found.b, found.a_clicks
    share = f"{percent(clicks / (found.a_clicks + found.b_clicks))} of the clicks on interleaved slates"
    text = f"{better} is preferred to {other}: it gets {share} (always-valid {p_is(p)})."
    return Sentence(text, "gain" if found.estimate > 0 else "loss")


def warnings(analysis: Analysis, counts: Counts) -> list[tuple[str, str]]:
    """Return what speaks against the verdict, each as a headline and an explanation."""
    found = []
    ratio = analysis.sample_ratio
    if ratio.mismatch:
        shares = "; ".join(
            f"{arm.arm} {count(arm.units)} (expected {ratio.expected[arm.arm]:,.0f})" for arm in analysis.arms
        )
        headline = f"Do not trust the comparison: sample ratio mismatch ({p_is(ratio.p_value)})."
        why = "Impressions are lost, units are assigned wrongly, or the weights were changed during the experiment."
        found.append((headline, f"The arms did not get the units of their weights: {shares}. {why}"))
    for name, arm in counts.arms.items():
        if arm.impressions and arm.fallbacks / arm.impressions > MANY_FALLBACKS:
            reasons = ", ".join(f"{reason} {count(number)}" for reason, number in arm.fallback_reasons.items())
            headline = (
                f"{percent(arm.fallbacks / arm.impressions)} of the slates of {name} fell back to the base order."
            )
            fallbacks = plural(arm.fallbacks, "slate")
            found.append((headline, f"{fallbacks} ({reasons}): the clicks of this arm say little of its model."))
    return found
