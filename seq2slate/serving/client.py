"""A client of a running service: one connection that stays open, and a clear idea of what may be sent twice.

While the service is busy (429, 503) or cannot be reached, the same is sent again after growing pauses, for a minute.
What was sent and never answered is another matter, since it may have arrived: a click is sent again, because a second
one changes nothing, but a request for a slate would make a second slate. Anything else that the service refuses is an
error with the service's own words.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from seq2slate.errors import DataError, UsageError

_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, *[2.0] * 29)  # in seconds
_TIMEOUT = 30.0
_BUSY = (429, 503)
_BAD_CONTENT = (400, 413, 422)


class LostError(Exception):
    """A request was sent, and its answer never came: nobody knows whether it arrived."""


class StoppedError(Exception):
    """Somebody said stop while the service was away."""


@dataclass(frozen=True)
class Answer:
    """What came back with a status of 2xx."""

    content: Any
    """From JSON; None if it is something else."""
    milliseconds: float
    """From the first byte sent to the last one received, without making a connection and without earlier attempts."""


class Client:
    """One connection to a service, for one thread; it is made when it is needed, and made anew when it breaks."""

    def __init__(self, url: str, key: str | None = None, stopped: threading.Event | None = None) -> None:
        """Take the address, as `seq2slate serve` prints it, and an API key; `stopped` ends all waiting."""
        self.url = url
        self.refused = 0
        """How often the service was busy."""
        self._connection, self._path = _new_connection(url)
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            if not (key.isascii() and key.isprintable()):  # the message must not say what it is
                raise UsageError("the key holds characters that no key has")
            self._headers["Authorization"] = f"Bearer {key}"
        self._stopped = stopped or threading.Event()

    def check(self) -> None:
        """Raise a UsageError if nobody listens."""
        try:
            self._connect()
        except (OSError, UnicodeError) as error:  # the second is about names that no machine can have
            raise UsageError(f"nothing answers at {self.url}: {error}") from error

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def post(self, path: str, body: bytes, *, about: str, once: bool = False) -> Answer:
        """Send JSON until it is answered; errors in the content of the request name what it is `about`.

        With `once`, what may have arrived is not sent again: it is a LostError.
        """
        for pause in _PAUSES:
            try:
                self._connect()
                status, content, milliseconds = self._post(self._path + path, body)
            except LostError as error:
                if once:
                    raise
                problem = str(error)
            except OSError as error:  # there is no connection, so nothing was sent
                problem = str(error)
            else:
                if status not in _BUSY:
                    self._check_status(status, content, about)
                    return Answer(_from_json(content), milliseconds)
                self.refused += 1
                problem = _message(status, content)
            if self._stopped.wait(pause):
                raise StoppedError
        raise UsageError(f"{self.url} took nothing in {len(_PAUSES)} attempts: {problem}")

    def _connect(self) -> None:
        if self._connection.sock is None:
            try:
                self._connection.connect()
            except BaseException:  # half a connection, without its TLS, must not be used
                self.close()
                raise

    def _post(self, path: str, body: bytes) -> tuple[int, bytes, float]:
        started = time.perf_counter()
        try:
            self._connection.request("POST", path, body, self._headers)
            response = self._connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise LostError(f"the connection broke: {error}") from error
        except BaseException:  # an answer that was not read must not be taken for that of the next request
            self.close()
            raise
        return response.status, content, (time.perf_counter() - started) * 1e3

    def _check_status(self, status: int, content: bytes, about: str) -> None:
        if status in _BAD_CONTENT:
            raise DataError(f"{about}: {self.url} answered {_message(status, content)}")
        if not 200 <= status < 300:
            hint = " (--key, or SEQ2SLATE_KEY)" if status == 401 else ""
            raise UsageError(f"{self.url} answered {_message(status, content)}{hint}")


def _new_connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection that is not open yet, and where the paths of the service begin."""
    try:
        parts = urlsplit(url if re.fullmatch("[!-~]+", url) else "")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError("expected the URL of a service, like http://127.0.0.1:8080")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=_TIMEOUT), parts.path.rstrip("/")


def _message(status: int, content: bytes) -> str:
    """Return the status and, if it is one of the service's own, the message."""
    try:
        return f"{status}: {_from_json(content)['error']}"
    except (KeyError, TypeError):
        return str(status)


def _from_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
