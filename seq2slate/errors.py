"""User errors: invalid data or options. The command line prints them without a traceback and exits with code 2."""

import sys
import warnings


class Seq2SlateError(Exception):
    """Base class of all user errors: the message says where the problem is and what to do."""


class DataError(Seq2SlateError, ValueError):
    """Invalid data: the message names the file and the row or line."""


class UsageError(Seq2SlateError, ValueError):
    """Invalid options: they contradict each other, a name is unknown, or a value is out of range."""


class NotFittedError(UsageError, AttributeError):
    """A ranker was used before `fit`."""


class TrainingStoppedError(Seq2SlateError):
    """Training stopped early; the message says why and how to resume."""


class TrainingInterruptedError(TrainingStoppedError):
    """Ctrl-C stopped the training."""


class DataWarning(UserWarning):
    """Data that is read and is probably not what it looks like: the message says how to declare or silence it."""


def warn_of_data(message: str) -> None:
    """Issue a DataWarning that points at the line of code that called into seq2slate."""
    depth, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("seq2slate."):
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(message, DataWarning, stacklevel=depth)
