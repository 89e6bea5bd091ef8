"""A battery of users, to see what a ranker gains with each: some as in the paper, and others of quite another form.

>>> from seq2slate.simulation.click_models import click_model
>>> click_model(BATTERY["diverse, q 0.1"])
DiverseClicks(eta=0.0, relevant_from=2.0, q=0.1, distance='euclidean')
"""

from __future__ import annotations

BATTERY = {
    "diverse": "diverse",
    "diverse, q 0.1": "diverse:q=0.1",
    "diverse, normalised": "diverse:distance=normalised",
    "diverse, cosine": "diverse:distance=cosine",
    "similar": "similar",
    "intent": "intent",
    "contrast": "contrast",
    "fatigue": "fatigue",
    "position": "position",
    "stopping": "stopping",
    "diverse or similar": "diverse + similar",
    "diverse or intent": "diverse + intent",
}
"""The text that `click_model` and `--user` take, by the name in tables."""
