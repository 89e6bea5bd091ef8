"""A client of a running service: one persistent connection, and retries of what is safe to send twice.

While the service is busy (429, 503) or cannot be reached, a request is retried with growing pauses, a minute in all. A
request without a response may have arrived: a click is retried, because it is idempotent, but a second request for a
slate would make a second slate. Any other error status is an error with the service's own message.
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

_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, *[2.0] * 29)  # seconds between attempts
_TIMEOUT = 30.0
_BUSY = (429, 503)
_INVALID = (400, 413, 422)


class ResponseLostError(Exception):
    """A request was sent and its response never came: it may have arrived or not."""


class ClientStoppedError(Exception):
    """The client was stopped while it waited for the service."""


@dataclass(frozen=True)
class ClientResponse:
    """A response with a status of 2xx."""

    content: Any
    """Decoded JSON; None if the body is something else."""
    milliseconds: float
    """From the first byte sent to the last one received, without connecting and without earlier attempts."""


class Client:
    """A connection to a service, for one thread; it is opened when it is needed, and reopened when it breaks."""

    def __init__(self, url: str, key: str | None = None, stopped: threading.Event | None = None) -> None:
        """Make a client that is not connected yet.

        Args:
            url: The address of the service, as `seq2slate serve` prints it.
            key: API key, if the service needs one.
            stopped: Ends all waiting once it is set.
        """
        self.url = url
        self.refused = 0
        """Responses of 429 and 503."""
        self._connection, self._path = _new_connection(url)
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            if not (key.isascii() and key.isprintable()):  # the message must not show it
                raise UsageError("the key has characters that no key has")
            self._headers["Authorization"] = f"Bearer {key}"
        self._stopped = stopped or threading.Event()

    def check(self) -> None:
        """Raise a UsageError if the service cannot be reached."""
        try:
            self._connect()
        except (OSError, UnicodeError) as error:  # the second is about invalid host names
            raise UsageError(f"cannot connect to {self.url}: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def post(self, path: str, body: bytes, *, about: str, is_idempotent: bool = True) -> ClientResponse:
        """Send JSON, and retry until there is a response.

        Args:
            path: The path of the route.
            body: The JSON.
            about: What the body is about, for the message of a DataError.
            is_idempotent: Whether a request that may have arrived is retried.

        Raises:
            DataError: The service refuses the content of the request (400, 413, 422).
            UsageError: It refuses the request for another reason, or does not respond in spite of all retries.
            ResponseLostError: The response was lost, and the request is not idempotent.
        """
        for pause in _PAUSES:
            try:
                self._connect()
                status, content, milliseconds = self._post(self._path + path, body)
            except ResponseLostError as error:
                if not is_idempotent:
                    raise
                problem = str(error)
            except OSError as error:  # there is no connection, so nothing was sent
                problem = str(error)
            else:
                if status not in _BUSY:
                    self._check_status(status, content, about)
                    return ClientResponse(_from_json(content), milliseconds)
                self.refused += 1
                problem = _message(status, content)
            if self._stopped.wait(pause):
                raise ClientStoppedError
        raise UsageError(f"{self.url}: {len(_PAUSES)} attempts failed: {problem}")

    def _connect(self) -> None:
        if self._connection.sock is None:
            try:
                self._connection.connect()
            except BaseException:  # a connection without its TLS must not be used
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
            raise ResponseLostError(f"the connection broke: {error}") from error
        except BaseException:  # an unread response must not be taken for that of the next request
            self.close()
            raise
        return response.status, content, (time.perf_counter() - started) * 1e3

    def _check_status(self, status: int, content: bytes, about: str) -> None:
        if status in _INVALID:
            raise DataError(f"{about}: {self.url} responded {_message(status, content)}")
        if not 200 <= status < 300:
            hint = " (--key, or SEQ2SLATE_KEY)" if status == 401 else ""
            raise UsageError(f"{self.url} responded {_message(status, content)}{hint}")


def _new_connection(url: str) -> tuple[http.client.HTTPConnection, str]:
    """Return a connection that is not open yet, and the prefix of the service's paths."""
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
    """Return the status and, if the service sent one, its message."""
    try:
        return f"{status}: {_from_json(content)['error']}"
    except (KeyError, TypeError):
        return str(status)


def _from_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
