"""Synthetic lists, and click models that label a log or are shown a new slate."""
