"""The service without HTTP: order the candidates, log the impression, and only then respond.

Re-ranking must never take the page down. Whatever goes wrong with a model (an error, invalid features, a missed
deadline) leads to the base order, marked as a fallback in the response, in the log and in the metrics.

A response with a `slate_id` is in the log. When the log does not take an impression, `log_failure` says whether the
request is refused or answered with the base order without an id, which nobody can click.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import exp, isfinite
from typing import Literal, TypeVar

import numpy as np
import torch
from msgspec import UNSET

from seq2slate.data.features import FeatureTransform
from seq2slate.data.impressions import BAD_FEATURES, Draft, Impression
from seq2slate.data.lists import FloatArray
from seq2slate.errors import DataError, Seq2SlateError
from seq2slate.experiments.assignment import BASE_RANKER, Arm
from seq2slate.experiments.interleaving import interleave, log_propensities
from seq2slate.log.backend import LogError
from seq2slate.log.impression_log import ImpressionLog
from seq2slate.log.writer import ClickOutcome
from seq2slate.serving.bad_features import BadFeatures, find_bad_features
from seq2slate.serving.deployment import Deployment, ServedModel
from seq2slate.serving.messages import ClickRequest, RerankResponse, SlateRequest
from seq2slate.serving.monitoring import Monitor

_logger = logging.getLogger("seq2slate.serving")
_Result = TypeVar("_Result")
DEADLINE, MODEL_ERROR, LOG_FAILURE = "deadline", "model-error", "log"
"""The reasons for a fallback, besides BAD_FEATURES."""
_DEADLINES_UNTIL_INTERRUPT = 10  # log deadlines after which a connection that hangs is closed


@dataclass(frozen=True)
class Timeouts:
    """Deadlines of a request, and what happens when the log misses its own."""

    deadline_ms: float = 100
    """For the model, from the arrival of the request; the base order is served if it takes longer."""
    log_deadline_ms: float = 1000
    """For a commit; the log has failed if it takes longer."""
    log_failure: Literal["serve", "refuse"] = "serve"
    """Without the log, serve the base order without a slate_id, or refuse the request with 503."""


@dataclass(frozen=True)
class _Slate:
    """The slots of a slate, as indices into the candidates, and how they were chosen."""

    shown: list[int]
    features: FloatArray | None
    model: str | None = None
    log_probabilities: list[float] | None = None
    is_sampled: bool = False
    fallback: str | None = None
    bad: BadFeatures | None = None
    """With the fallback BAD_FEATURES."""
    draft: Draft | None = None


class RerankService:
    """A deployment and a log, for one event loop."""

    def __init__(
        self,
        load: Callable[[], Deployment],
        store: ImpressionLog,
        monitor: Monitor,
        timeouts: Timeouts,
        *,
        threads: int | None = None,
    ) -> None:
        """Load the deployment.

        Args:
            load: Loads the deployment; `reload` calls it again.
            store: The log.
            monitor: The metrics.
            timeouts: Deadlines of the model and the log.
            threads: Of the model; as many as cores, up to four, if not given.
        """
        self._load = load
        self.deployment = load()
        self.store = store
        self._note_experiment()
        self._monitor = monitor
        self._timeouts = timeouts
        self._threads = ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1), "seq2slate-model")
        self._running: set[Future[_Slate]] = set()
        self._overdue: set[Future[object]] = set()
        self._last_write_failed = False
        self._reloading = asyncio.Lock()

    # The three things it does

    async def rerank(self, request: SlateRequest, *, arrived: float | None = None) -> RerankResponse:
        """Return a slate whose impression is committed.

        Args:
            request: The candidates.
            arrived: When, by `time.perf_counter`; the deadline of the model counts from there.

        Raises:
            LogError: The log failed, and `log_failure` is "refuse".
        """
        started = time.perf_counter() if arrived is None else arrived
        deadline = started + self._timeouts.deadline_ms / 1e3
        deployment = self.deployment
        arm = deployment.experiment.assign(request.unit)
        if not request.ids:  # nothing is shown, so there is nothing to log and nothing to click
            return RerankResponse(None, arm.name, [])
        if deployment.experiment.kind == "interleaving":
            slate = await self._interleave(deployment, request, deadline)
        else:
            slate = await self._order(deployment, arm, request, deadline)
        slate_id: str | None = secrets.token_urlsafe(16)
        impression = partial(_impression, str(slate_id), deployment, arm, request, slate, started)
        try:
            await self._commit(lambda: self.store.add_impression(impression()))
        except LogError:
            if self.requires_log:
                raise
            slate, slate_id = _base_order(request.k, None, LOG_FAILURE), None
        return self._response(slate_id, arm, request, slate)

    async def click(self, request: ClickRequest) -> ClickOutcome:
        """Log a click, and return its outcome after the commit."""
        now = time.time()
        outcome = await self._commit(lambda: self.store.add_click(request.slate_id, request.item, now))
        self._monitor.clicks.labels(outcome.value).inc()
        return outcome

    async def reload(self) -> Deployment:
        """Load the models and the experiment beside those being served, and switch to them if all is well.

        One reload at a time, so that what was read last is what is served.
        """
        try:
            async with self._reloading:
                self.deployment = await asyncio.to_thread(self._load)
                self._note_experiment()
        except (Seq2SlateError, OSError) as error:
            self._monitor.reloads.labels("failed").inc()
            _logger.error("reload failed, the models loaded before stay in service: %s", error)
            raise
        self._monitor.reloads.labels("done").inc()
        _logger.warning("reloaded: %s", {arm: one.fingerprint for arm, one in self.deployment.models.items()})
        return self.deployment

    def _note_experiment(self) -> None:
        """Log the definition of the experiment, which its analysis needs, before its impressions."""
        with suppress(LogError):  # a log that fails is reported with the first request
            self.store.note(self.deployment.definition)

    @property
    def requires_log(self) -> bool:
        """Whether requests are refused while the log fails."""
        return self._timeouts.log_failure == "refuse"

    async def log_is_available(self) -> bool:
        """Say whether the log can be read and, if a write failed or a file is lost, whether it can be written."""
        try:
            if self._last_write_failed or self._overdue or not self.store.has_its_files():
                await self._commit(self.store.check_writable)
            await asyncio.wait_for(asyncio.to_thread(self.store.get, ""), self._timeouts.log_deadline_ms / 1e3)
        except (TimeoutError, Seq2SlateError, OSError):
            return False
        return True

    def close(self) -> bool:
        """Commit the backlog of the log, without waiting for a model; say whether no thread is left running."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.store.close()
        return not self._running

    # Ordering

    async def _order(self, deployment: Deployment, arm: Arm, request: SlateRequest, deadline: float) -> _Slate:
        """Order the candidates as an arm does, or fall back to the base order."""
        k, features = request.k, request.features
        if not request.ids:
            return _base_order(k, features, None)
        model, transform = deployment.models.get(arm.name), deployment.transforms[arm.name]
        if features is None or (transform is not None and features.shape[1] != len(transform.dense.names)):
            return _bad_features(request, transform)  # in every arm alike, so that they stay comparable
        started = time.perf_counter()
        try:
            if model is not None:
                return await self._place(model, arm.temperature, features, request, deadline)
            if transform is not None:
                transform.check_columns(features, request.categorical, request.context or {})
            return _base_order(k, features, None)
        except TimeoutError:
            return _base_order(k, features, DEADLINE)
        except DataError:
            return _bad_features(request, transform)
        except Exception:
            _logger.exception("arm %s: the model failed", arm.name)
            return _base_order(k, features, MODEL_ERROR)
        finally:
            if model is not None:
                self._monitor.model_seconds.observe(time.perf_counter() - started)

    async def _interleave(self, deployment: Deployment, request: SlateRequest, deadline: float) -> _Slate:
        """Let two arms fill one slate; if either falls back, so does the slate."""
        arms = deployment.experiment.arms
        slates = await asyncio.gather(*(self._order(deployment, arm, request, deadline) for arm in arms))
        failed = next((slate for slate in slates if slate.fallback is not None), None)
        if failed is not None:
            return failed
        a, b = (slate.shown for slate in slates)
        shown, teams = interleave(a, b, len(a), np.random.default_rng(secrets.randbits(128)))
        return _Slate(
            shown,
            slates[0].features,
            model="+".join(slate.model or BASE_RANKER for slate in slates),
            log_probabilities=log_propensities(a, b, shown),
            is_sampled=True,
            draft=Draft(arms[0].name, arms[1].name, "".join(teams)),
        )

    async def _place(
        self,
        model: ServedModel,
        temperature: float | None,
        features: FloatArray,
        request: SlateRequest,
        deadline: float,
    ) -> _Slate:
        """Run the model within its deadline: in the event loop if it is quick, in a thread if it may take long."""
        left = deadline - time.perf_counter()
        if left <= 0:
            raise TimeoutError
        task = partial(_run_model, model, temperature, features, request)
        if len(features) > model.runtime.quick_items:
            work = self._threads.submit(task)
            self._running.add(work)
            work.add_done_callback(self._running.discard)
            return await asyncio.wait_for(asyncio.wrap_future(work), left)
        slate = task()
        if time.perf_counter() > deadline:
            raise TimeoutError
        return slate

    def _response(self, slate_id: str | None, arm: Arm, request: SlateRequest, slate: _Slate) -> RerankResponse:
        self._monitor.slates.labels(arm.name).inc()
        if slate.fallback is not None:
            self._monitor.fallbacks.labels(arm.name, slate.fallback).inc()
        if slate.bad is not None:
            self._monitor.bad_features.labels(arm.name, slate.bad.column).inc()
        logs = slate.log_probabilities if request.explain else None
        probabilities = None if logs is None else [exp(min(log, 0.0)) for log in logs]
        return RerankResponse(
            slate_id,
            arm.name,
            [request.ids[item] for item in slate.shown],
            fallback=slate.fallback is not None,
            reason=slate.fallback or UNSET,
            detail=UNSET if slate.bad is None else slate.bad.detail,
            probabilities=probabilities if request.explain else UNSET,
        )

    # Logging

    async def _commit(self, write: Callable[[], Future[_Result]]) -> _Result:
        """Write to the log and wait for the commit; while a write is overdue, all others fail at once."""
        started = time.perf_counter()
        try:
            if self._overdue:
                raise LogError("the log does not respond")
            outcome = await self._wait_for_commit(write())
            self._last_write_failed = False
            return outcome
        except Seq2SlateError as error:
            # Whatever failed: what hangs may be a write that nobody waits for any more, and the queue full behind it.
            self.store.give_up_after(_DEADLINES_UNTIL_INTERRUPT * self._timeouts.log_deadline_ms / 1e3)
            self._last_write_failed = True
            self._monitor.log_failures.inc()
            _logger.warning("%s", error)
            raise error if isinstance(error, LogError) else LogError(str(error)) from error
        finally:
            self._monitor.log_seconds.observe(time.perf_counter() - started)

    async def _wait_for_commit(self, future: Future[_Result]) -> _Result:
        """Wait for a write; by hand, because this is hot and `asyncio.wait_for` takes half as long again."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def wake(_: Future[_Result]) -> None:
            if not loop.is_closed():  # as it is if the write outlives the service
                loop.call_soon_threadsafe(_end, over)

        future.add_done_callback(wake)
        timer = loop.call_later(self._timeouts.log_deadline_ms / 1e3, _end, over)
        try:
            await over
        except asyncio.CancelledError:  # the client is gone
            future.cancel()
            raise
        finally:
            timer.cancel()
        if future.done():
            return future.result()
        if not future.cancel():  # it is being written: its outcome is unknown until the database responds
            self._overdue.add(future)  # type: ignore[arg-type]
            future.add_done_callback(self._end_overdue)
        raise LogError(f"{self.store.name}: no commit within {self._timeouts.log_deadline_ms / 1e3:g} s")

    def _end_overdue(self, future: Future[_Result]) -> None:
        """Let writes through again, and count one that was committed after its request was answered."""
        if future.exception() is None:
            self._monitor.late_commits.inc()
        self._overdue.discard(future)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _run_model(model: ServedModel, temperature: float | None, features: FloatArray, request: SlateRequest) -> _Slate:
    """Order the candidates by a model; may run in a thread."""
    generator = None if temperature is None else torch.Generator().manual_seed(secrets.randbits(63))
    placed, logs = model.runtime.slate(
        features,
        request.k,
        ids=request.ids,
        categorical=request.categorical,
        context=request.context,
        generator=generator,
        temperature=temperature or 1.0,
    )
    shown: list[int] = placed.tolist()
    log_probabilities: list[float] = logs.tolist()
    k = request.k
    if len(shown) != k or len(set(shown)) != k or min(shown) < 0 or not all(map(isfinite, log_probabilities)):
        raise RuntimeError("the model's slate is not k different items with finite log-probabilities")
    return _Slate(shown, features, model.fingerprint, log_probabilities, is_sampled=temperature is not None)


def _base_order(k: int, features: FloatArray | None, fallback: str | None) -> _Slate:
    return _Slate(list(range(k)), features, fallback=fallback)


def _bad_features(request: SlateRequest, transform: FeatureTransform | None) -> _Slate:
    return replace(_base_order(request.k, None, BAD_FEATURES), bad=find_bad_features(request, transform))


def _impression(
    slate_id: str, deployment: Deployment, arm: Arm, request: SlateRequest, slate: _Slate, started: float
) -> Impression:
    """Return the impression to log; invalid features are left out, all of them."""
    is_valid, transform = slate.features is not None, deployment.transforms[arm.name]
    return Impression(
        slate_id=slate_id,
        at=time.time(),
        unit=request.unit,
        experiment=deployment.experiment.name,
        arm=arm.name,
        items=request.ids,
        shown=slate.shown,
        features=np.zeros((len(request.ids), 0), np.float32) if slate.features is None else slate.features,
        latency_ms=(time.perf_counter() - started) * 1e3,
        feature_names=() if transform is None or not is_valid else transform.dense.names,
        categorical=request.categorical if is_valid else {},
        context=request.context if is_valid else None,
        model=slate.model,
        log_propensities=slate.log_probabilities if slate.is_sampled else None,
        fallback=slate.fallback,
        fallback_detail=None if slate.bad is None else slate.bad.detail,
        draft=slate.draft,
        titles=request.titles,
    )
