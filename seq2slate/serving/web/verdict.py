"""What an experiment says, in a sentence for each arm, and what speaks against believing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from seq2slate.experiments.analysis import Analysis, ArmResult
from seq2slate.experiments.counts import Counts
from seq2slate.experiments.preference import Preference
from seq2slate.experiments.statistics import ALPHA, MIN_UNITS
from seq2slate.serving.web.words import count, in_100, p_value, percent, plural

Tone: TypeAlias = Literal["gain", "loss", "open"]
MANY_FALLBACKS = 0.05
"""Above this share of an arm's slates, its clicks say little of its model."""


@dataclass(frozen=True)
class Sentence:
    """What is known of an arm."""

    text: str
    tone: Tone


def sentences(analysis: Analysis) -> list[Sentence]:
    """Return a sentence for each arm besides the control, or one on what is missing; all hold together at any look."""
    control, *others = analysis.arms
    if not any(arm.impressions for arm in analysis.arms):
        return [Sentence("No slates yet: nobody has seen this experiment.", "open")]
    if analysis.sample_ratio.mismatch:
        return [Sentence("No verdict: the arms did not get the units that their weights promise.", "open")]
    shared = [_preference(one) for one in analysis.preferences]
    if not others and shared:
        return shared
    if not others:
        rate = None if control.ctr is None else control.ctr.value
        return [
            Sentence(f"One arm, so nothing to compare: {control.arm} gets {in_100(rate)} clicks in 100 slates.", "open")
        ]
    return [*shared, *(_sentence(arm, control) for arm in others)]


def _sentence(arm: ArmResult, control: ArmResult) -> Sentence:
    difference = arm.against_control
    not_yet = f"{arm.arm} cannot be compared with {control.arm} yet"
    if difference is None:
        return Sentence(f"{not_yet}: too few units or clicks.", "open")
    interval, p = difference.any_time, difference.any_time_p
    if interval is None or p is None:
        return Sentence(f"{not_yet}: too few units; each of the two needs {MIN_UNITS}.", "open")
    if p >= ALPHA:
        ends = [in_100(end, signed=True) for end in (interval.low, interval.high)]
        about = f"between {ends[0]} and {ends[1]} clicks in 100 slates ({p_is(p)})"
        return Sentence(f"{arm.arm} is not told apart from {control.arm} yet: {about}.", "open")
    side = "more" if difference.value > 0 else "fewer"
    much = f"{arm.arm} gets {percent(abs(difference.lift))} {side} clicks than {control.arm}"
    return Sentence(f"{much}; sure at any look ({p_is(p)}).", "gain" if difference.value > 0 else "loss")


def _preference(found: Preference) -> Sentence:
    """Say which of two arms is preferred on the slates that they share."""
    interval, p = found.any_time, found.any_time_p
    if found.estimate is None or interval is None or p is None:
        few = f"too few units have clicked; {MIN_UNITS} are needed"
        why = few if found.units < MIN_UNITS else "all units that clicked are alike"
        return Sentence(f"{found.b} cannot be compared with {found.a} yet: {why}.", "open")
    if p >= ALPHA:
        ends = [percent(end, signed=True) for end in (interval.low, interval.high)]
        about = f"the preference for {found.b} is between {ends[0]} and {ends[1]} ({p_is(p)})"
        return Sentence(f"{found.b} is not told apart from {found.a} yet: {about}.", "open")
    better, other, clicks = found.b, found.a, found.b_clicks
    if found.estimate < 0:
        better, other, clicks = found.a, found.b, found.a_clicks
    share = f"{percent(clicks / (found.a_clicks + found.b_clicks))} of the clicks on the slates that both share"
    text = f"{better} is preferred to {other}: it gets {share}; sure at any look ({p_is(p)})."
    return Sentence(text, "gain" if found.estimate > 0 else "loss")


def tone(analysis: Analysis) -> Tone:
    """Return the tone of the whole: a gain or a loss only if every sentence that is sure says so."""
    sure = {one.tone for one in sentences(analysis)} - {"open"}
    return sure.pop() if len(sure) == 1 else "open"


def warnings(analysis: Analysis, counts: Counts) -> list[tuple[str, str]]:
    """Return what speaks against the verdict, each as a headline and an explanation."""
    found = []
    ratio = analysis.sample_ratio
    if ratio.mismatch:
        shares = "; ".join(
            f"{arm.arm} {count(arm.units)} (expected {ratio.expected[arm.arm]:,.0f})" for arm in analysis.arms
        )
        why = "Slates are lost, units are dealt wrongly, or the weights were changed on the way."
        headline = "Do not trust the comparison: the arms did not get the units that their weights promise"
        found.append((f"{headline} ({p_is(ratio.p_value)}).", f"Units: {shares}. {why}"))
    for name, arm in counts.arms.items():
        if arm.impressions and arm.fallbacks / arm.impressions > MANY_FALLBACKS:
            reasons = ", ".join(f"{reason} {count(number)}" for reason, number in arm.fallback_reasons.items())
            share = percent(arm.fallbacks / arm.impressions)
            headline = f"{share} of the slates of {name} fell back to the base order."
            found.append(
                (headline, f"{plural(arm.fallbacks, 'slate')} ({reasons}): its clicks say little of its model.")
            )
    return found


def p_is(p: float | None) -> str:
    """Return a p-value as part of a sentence.

    >>> p_is(0.02), p_is(1e-9)
    ('p = 0.02', 'p below 0.0001')
    """
    text = p_value(p)
    return f"p {text}" if text.startswith("below") else f"p = {text}"
