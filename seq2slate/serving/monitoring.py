"""The metrics of the service, in the format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

METRICS_TYPE = CONTENT_TYPE_LATEST
"""The media type of `Monitor.text`."""
_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Monitor:
    """The metrics of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Responses, by route and status.", "route", "status")
        self.request_seconds = self._histogram("request_seconds", "From a request to its response.", "route")
        self.model_seconds = self._histogram("model_seconds", "To order one list, with the wait for a thread.")
        self.log_seconds = self._histogram("log_seconds", "From a write to its commit.")
        self.slates = self._counter("slates", "Slates served.", "arm")
        self.fallbacks = self._counter("fallbacks", "Slates in base order instead of the arm's own.", "arm", "reason")
        self.bad_features = self._counter(
            "bad_features", "Slates in base order because of a column, by the column.", "arm", "column"
        )
        self.clicks = self._counter("clicks", "Clicks, by outcome.", "outcome")
        self.log_failures = self._counter("log_failures", "Writes that the log refused or did not commit in time.")
        self.late_commits = self._counter("late_commits", "Writes that were committed after their deadline.")
        self.reloads = self._counter("reloads", "Reloads of the models and the experiment.", "outcome")
        self.in_flight = Gauge("seq2slate_in_flight", "Requests in flight.", registry=self._registry)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"seq2slate_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"seq2slate_{name}", text, labels, buckets=_SECONDS, registry=self._registry)
