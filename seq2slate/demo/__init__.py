"""`seq2slate demo`: from lists made on the spot to a live experiment that the new model wins, in a few minutes."""

from seq2slate.demo.tour import run

__all__ = ["run"]
