"""Rankers to compare with: the base order, random orders, ceilings, and classic learners."""
