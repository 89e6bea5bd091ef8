"""Rankers compared: measures with intervals and tests, tables, pictures and reports."""
