"""The errors that a user can mend; the command line prints them without a traceback and exits with code 2."""


class Seq2SlateError(Exception):
    """Anything wrong with what was given: the message says where and what to do."""


class DataError(Seq2SlateError, ValueError):
    """A file, table or array that cannot be used as it is: the message names the file and the row or line."""


class UsageError(Seq2SlateError, ValueError):
    """Options that do not go together, a name that does not exist, or a value out of range."""
