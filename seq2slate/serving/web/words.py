"""Numbers and times as a page says them."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from seq2slate.experiments.statistics import Interval
from seq2slate.html import Html, element

NOTHING = "–"
_LEAST_P = 0.0001


def count(number: int) -> str:
    """Return a whole number with its thousands set apart.

    >>> count(1234567)
    '1,234,567'
    """
    return f"{number:,}"


def in_100(rate: float | None, *, signed: bool = False) -> str:
    """Return a rate as clicks in 100 slates.

    >>> in_100(0.34945), in_100(0.00012), in_100(-0.01, signed=True), in_100(None)
    ('34.95', '0.012', '−1.00', '–')
    """
    if rate is None:
        return NOTHING
    value = 100 * rate
    text = f"{abs(value):.2f}" if abs(value) >= 0.1 or not value else f"{abs(value):.2g}"
    return _sign(value, signed) + text


def span(interval: Interval | None, *, signed: bool = False) -> str:
    """Return an interval of rates, in 100 slates.

    >>> span(Interval(0.1, 0.2))
    '10.00 … 20.00'
    """
    if interval is None:
        return NOTHING
    return f"{in_100(interval.low, signed=signed)} … {in_100(interval.high, signed=signed)}"


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
    ('0.031', 'below 0.0001', '1', '–')
    """
    if p is None:
        return NOTHING
    return "below 0.0001" if p < _LEAST_P else f"{p:.2g}"


def milliseconds(value: float) -> str:
    """Return a duration.

    >>> milliseconds(0.734), milliseconds(12.34), milliseconds(250.4)
    ('0.73 ms', '12.3 ms', '250 ms')
    """
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} ms"


def plural(number: int, noun: str) -> str:
    """Return how many of something.

    >>> plural(1, "slate"), plural(1200, "slate")
    ('1 slate', '1,200 slates')
    """
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def moment(at: float) -> Html:
    """Return a time in seconds since 1970 as an element; one that no calendar has is left as a number."""
    try:
        when = datetime.fromtimestamp(at, UTC)
    except (OverflowError, OSError, ValueError):
        return element("span", f"{at:g}")
    return element("time", f"{when:%Y-%m-%d %H:%M:%S} UTC", datetime=when.isoformat(timespec="seconds"))


def clock(minute: int) -> str:
    """Return the time of day of a minute since 1970.

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


def _sign(value: float, signed: bool) -> str:
    return "−" if value < 0 else "+" if signed and value > 0 else ""
