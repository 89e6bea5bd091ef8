"""User errors: invalid input or options. The command line prints them without a traceback and exits with code 2."""


class Seq2SlateError(Exception):
    """Base class of all user errors: the message says where the problem is and what to do."""


class DataError(Seq2SlateError, ValueError):
    """A file, table or array that cannot be used as it is: the message names the file and the row or line."""


class UsageError(Seq2SlateError, ValueError):
    """Options that do not go together, a name that does not exist, or a value out of range."""


class NotFittedError(UsageError, AttributeError):
    """A ranker was asked for what only `fit` can give it."""


class TrainingStoppedError(Seq2SlateError):
    """Training ended before its time; the message says why and how to go on."""


class TrainingInterruptedError(TrainingStoppedError):
    """Ctrl-C ended the training."""
