"""Worlds and users: generated lists, and click models that label a log or react to a new slate."""
