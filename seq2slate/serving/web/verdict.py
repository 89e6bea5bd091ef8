"""What an experiment says, in a sentence for each arm, and what speaks against believing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from seq2slate.serving.analysis import Analysis, ArmResult
from seq2slate.serving.inference import ALPHA
from seq2slate.serving.log.counts import Counts
from seq2slate.serving.preference import Preference
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
    """Return a sentence for each arm besides the control, or one on what is missing.

    With several arms each p-value is multiplied by their number, so that all sentences together hold at 95%.
    """
    control, *others = analysis.arms
    if not any(arm.impressions for arm in analysis.arms):
        return [Sentence("No slates yet: nobody has seen this experiment.", "open")]
    shared = [_preference(one) for one in analysis.preferences]
    if not others and shared:
        return shared
    if not others:
        rate = None if control.ctr is None else control.ctr.value
        return [
            Sentence(f"One arm, so nothing to compare: {control.arm} gets {in_100(rate)} clicks in 100 slates.", "open")
        ]
    return [*shared, *(_sentence(arm, control, len(others)) for arm in others)]


def _sentence(arm: ArmResult, control: ArmResult, n_comparisons: int) -> Sentence:
    difference = arm.against_control
    if difference is None:
        return Sentence(f"{arm.arm} cannot be compared with {control.arm} yet: too few units or clicks.", "open")
    p = min(1.0, n_comparisons * difference.any_time_p)
    if p >= ALPHA or difference.lift is None:
        ends = [in_100(end, signed=True) for end in (difference.any_time.low, difference.any_time.high)]
        about = f"between {ends[0]} and {ends[1]} clicks in 100 slates ({p_is(p)})"
        return Sentence(f"{arm.arm} is not told apart from {control.arm} yet: {about}.", "open")
    side = "more" if difference.value > 0 else "fewer"
    much = f"{arm.arm} gets {percent(abs(difference.lift))} {side} clicks than {control.arm}"
    return Sentence(f"{much}; sure at any look ({p_is(p)}).", "gain" if difference.value > 0 else "loss")


def _preference(found: Preference) -> Sentence:
    """Say which of two arms is preferred on the slates that they share."""
    if found.estimate is None or found.any_time_p is None:
        return Sentence(f"{found.b} cannot be compared with {found.a} yet: too few units have clicked.", "open")
    better, other, clicks = found.b, found.a, found.b_clicks
    if found.estimate < 0:
        better, other, clicks = found.a, found.b, found.a_clicks
    share = f"{percent(clicks / (found.a_clicks + found.b_clicks))} of the clicks on the slates that both share"
    if found.any_time_p >= ALPHA:
        so_far = f"{better} gets {share} ({p_is(found.any_time_p)})"
        return Sentence(f"{better} is not told apart from {other} yet: {so_far}.", "open")
    text = f"{better} is preferred to {other}: it gets {share}; sure at any look ({p_is(found.any_time_p)})."
    return Sentence(text, "gain" if found.estimate > 0 else "loss")


def tone(analysis: Analysis) -> Tone:
    """Return the tone of the whole: a gain or a loss only if every sentence that is sure says so."""
    sure = {one.tone for one in sentences(analysis)} - {"open"}
    return sure.pop() if len(sure) == 1 else "open"


def warnings(analysis: Analysis, counts: Counts, weights: Mapping[str, float] | None) -> list[tuple[str, str]]:
    """Return what speaks against the verdict, each as a headline and an explanation."""
    found = []
    ratio = analysis.sample_ratio
    if ratio.mismatch and weights is not None:
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
