"""What Prometheus reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class RouteMonitor:
    """The numbers of one route, looked up once and not at every answer."""

    def __init__(self, requests: Counter, seconds: Histogram, route: str) -> None:
        self._requests, self._route = requests, route
        self._seconds = seconds.labels(route)
        self._by_status: dict[int, Counter] = {}

    def answered(self, status: int, seconds: float) -> None:
        """Count an answer."""
        if status not in self._by_status:
            self._by_status[status] = self._requests.labels(self._route, str(status))
        self._by_status[status].inc()
        self._seconds.observe(seconds)


class Monitor:
    """The numbers of one service."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Answers, by route and status.", "route", "status")
        self._seconds = self._histogram("request_seconds", "From the request to its answer.", "route")
        self.model_seconds = self._histogram("model_seconds", "To order one list, with the wait for a thread.")
        self.log_seconds = self._histogram("log_seconds", "From a write to its commit.")
        self.slates = self._counter("slates", "Slates that were answered.", "arm")
        self.fallbacks = self._counter("fallbacks", "Slates in base order in the place of the arm's.", "arm", "reason")
        self.clicks = self._counter("clicks", "Clicks, by what became of them.", "outcome")
        self.log_failures = self._counter("log_failures", "Writes that the log did not take.")
        self.late_commits = self._counter("late_commits", "Writes that were committed after they had been given up.")
        self.reloads = self._counter("reloads", "Models loaded anew.", "outcome")
        self.in_flight = Gauge("seq2slate_in_flight", "Requests being answered.", registry=self._registry)

    def of_route(self, route: str) -> RouteMonitor:
        """Return the numbers of one route."""
        return RouteMonitor(self._requests, self._seconds, route)

    def text(self) -> bytes:
        """Return all numbers in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"seq2slate_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"seq2slate_{name}", text, labels, buckets=_SECONDS, registry=self._registry)
