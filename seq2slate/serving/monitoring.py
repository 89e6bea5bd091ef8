"""The metrics of the service, in the format of Prometheus.

The workers of a service keep their metrics in files that all of them read: each of them shows the sum over all. The
worker that replaces one that died goes on with its files, so counters never go back.
"""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

METRICS_TYPE = CONTENT_TYPE_LATEST
"""The media type of `Monitor.text`."""
_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Monitor:
    """The metrics of one service, or of one of its workers."""

    def __init__(self, folder: Path | None = None, worker: int = 0) -> None:
        """Start at zero, or where an earlier worker of this number ended.

        Args:
            folder: For the files of all workers; None if there is one process only.
            worker: The number of this process among them.
        """
        if folder is not None:  # before any metric is made
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = os.fspath(folder)
            values.ValueClass = values.MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]
        self._folder = folder
        self._gauges: list[Gauge] = []
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
        self.in_flight = self._gauge("in_flight", "Requests in flight.")

    def text(self) -> bytes:
        """Return all metrics, over all workers, in the text format of Prometheus."""
        if self._folder is None:
            return generate_latest(self._registry)
        self.publish()
        everything = CollectorRegistry()
        MultiProcessCollector(everything, os.fspath(self._folder))  # type: ignore[no-untyped-call]
        return generate_latest(everything)

    def publish(self) -> None:
        """Write down for other workers what is counted only when somebody asks: the gauges."""
        for gauge in self._gauges:
            gauge.set(next(iter(gauge.collect())).samples[0].value)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"seq2slate_{name}", text, registry=self._registry, multiprocess_mode="livesum")
        self._gauges.append(gauge)
        return gauge

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"seq2slate_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"seq2slate_{name}", text, labels, buckets=_SECONDS, registry=self._registry)
