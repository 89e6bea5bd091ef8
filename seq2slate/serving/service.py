"""What the service does, without HTTP: order the candidates, log what is shown, and only then answer.

Re-ranking must never take the page down. Whatever goes wrong with a model (an error, features it cannot read, no answer
before the deadline) leads to the base order, marked as a fallback in the answer, in the log and in the metrics.

What is answered with a `slate_id` is in the log. When the log does not take an impression, `on_log_failure` says
whether the request is refused or answered in base order without an id, which nobody can click.
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
from dataclasses import dataclass
from functools import partial
from math import exp, isfinite
from typing import Literal, TypeVar

import numpy as np
import torch
from msgspec import UNSET

from seq2slate.data.impressions import BAD_FEATURES, Draft, Impression
from seq2slate.data.lists import FloatArray
from seq2slate.errors import DataError, Seq2SlateError
from seq2slate.experiments.assignment import BASE, Arm
from seq2slate.experiments.counts import Definition
from seq2slate.experiments.interleaving import interleave, log_propensities
from seq2slate.log.backend import LogError
from seq2slate.log.impression_log import ImpressionLog
from seq2slate.log.writer import ClickOutcome
from seq2slate.serving.deployment import Deployment, ServedModel
from seq2slate.serving.messages import Candidates, ClickRequest, RerankAnswer, RerankRequest
from seq2slate.serving.monitoring import Monitor

logger = logging.getLogger("seq2slate.serving")
Outcome = TypeVar("Outcome")
OnLogFailure = Literal["serve", "refuse"]
DEADLINE, MODEL_ERROR, LOG = "deadline", "model-error", "log"
"""The reasons for a fallback, besides BAD_FEATURES."""
_PATIENCE_WITH_A_GROUP = 10  # log deadlines, after which a connection that says nothing is cut


@dataclass(frozen=True)
class Timeouts:
    """How long to wait, in seconds, and what then."""

    deadline: float = 0.1
    """For the model, after which the base order is answered."""
    log: float = 1.0
    """For a commit, after which the log counts as failed."""
    on_log_failure: OnLogFailure = "serve"


@dataclass(frozen=True)
class _Slate:
    """What is to be shown, as indices of the candidates, and how that came about."""

    shown: list[int]
    features: FloatArray | None
    model: str | None = None
    log_probabilities: list[float] | None = None
    was_drawn: bool = False
    fallback: str | None = None
    draft: Draft | None = None


class RerankService:
    """The models of an experiment and a log, for one event loop."""

    def __init__(
        self,
        load: Callable[[], Deployment],
        store: ImpressionLog,
        monitor: Monitor,
        patience: Timeouts,
        *,
        threads: int | None = None,
    ) -> None:
        """Load the deployment; `reload` will call `load` again."""
        self._load = load
        self.deployment = load()
        self.store = store
        self._note_experiment()
        self._monitor = monitor
        self._patience = patience
        self._threads = ThreadPoolExecutor(threads or min(4, os.cpu_count() or 1), "seq2slate-model")
        self._at_work: set[Future[_Slate]] = set()
        self._stuck: set[Future[object]] = set()
        self._last_write_failed = False
        self._reloading = asyncio.Lock()

    # The three things it does

    async def rerank(self, request: RerankRequest, candidates: Candidates) -> RerankAnswer:
        """Return a slate whose impression is committed; a LogError if it must be and cannot be."""
        started = time.perf_counter()
        deployment = self.deployment
        arm = deployment.experiment.assign(request.unit)
        if not candidates.ids:  # nothing is shown, so there is nothing to log and nothing to click
            return RerankAnswer(None, arm.name, [])
        if deployment.experiment.kind == "interleaving":
            slate = await self._shared(deployment, request, candidates)
        else:
            slate = await self._order(deployment, arm, request, candidates)
        slate_id: str | None = secrets.token_urlsafe(16)
        about = (str(slate_id), deployment, arm, request.unit, candidates, slate, started)
        try:
            await self._committed(lambda: self.store.add_impression(_impression(*about)))
        except LogError:
            if self.needs_log:
                raise
            slate, slate_id = _base_order(len(slate.shown), None, LOG), None
        return self._answer(slate_id, arm, request, candidates, slate)

    async def click(self, request: ClickRequest) -> ClickOutcome:
        """Log a click, and say what became of it after the commit."""
        now = time.time()
        outcome = await self._committed(lambda: self.store.add_click(request.slate_id, request.item, now))
        self._monitor.clicks.labels(outcome.value).inc()
        return outcome

    async def reload(self) -> Deployment:
        """Load everything anew beside what is being served, and put it in its place if all is well.

        One at a time, so that what was read last is what is served.
        """
        try:
            async with self._reloading:
                self.deployment = await asyncio.to_thread(self._load)
                self._note_experiment()
        except (Seq2SlateError, OSError) as error:
            self._monitor.reloads.labels("failed").inc()
            logger.error("reload failed, and what was served before goes on: %s", error)
            raise
        self._monitor.reloads.labels("done").inc()
        logger.warning("reloaded: %s", {arm: one.fingerprint for arm, one in self.deployment.models.items()})
        return self.deployment

    def _note_experiment(self) -> None:
        """Write down what an analysis of the log has to know; the impressions that need it come after it."""
        experiment = self.deployment.experiment
        with suppress(LogError):  # a log that takes nothing will say so itself
            self.store.note(Definition(experiment.name, experiment.control, experiment.weights))

    @property
    def needs_log(self) -> bool:
        """Whether requests are refused while the log fails."""
        return self._patience.on_log_failure == "refuse"

    async def log_answers(self) -> bool:
        """Say whether the log can be read and, if the last write failed, whether it can be written again."""
        try:
            await asyncio.wait_for(asyncio.to_thread(self.store.get, ""), self._patience.log)
            if self._last_write_failed or self._stuck:
                await self._committed(self.store.check_writable)
        except (TimeoutError, Seq2SlateError, OSError):
            return False
        return True

    def close(self) -> bool:
        """Commit what is waiting, without waiting for a model; say whether all its threads are at rest."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.store.close()
        return not self._at_work

    # Ordering

    async def _order(self, deployment: Deployment, arm: Arm, request: RerankRequest, candidates: Candidates) -> _Slate:
        n = len(candidates.ids)
        k = n if request.k is None else min(request.k, n)
        features = candidates.features()
        model, names = deployment.models.get(arm.name), deployment.feature_names(arm)
        if names is None and all(row is None for row in candidates.rows):  # no model, and nobody says there is one
            return _base_order(k, None, None)
        if features is None or (names is not None and features.shape[1] != len(names)):
            return _base_order(k, None, BAD_FEATURES)  # in every arm alike, so that they stay comparable
        if model is None:
            fits = deployment.reads(candidates.categorical, candidates.context)
            return _base_order(k, features, None) if fits else _base_order(k, None, BAD_FEATURES)
        started = time.perf_counter()
        try:
            return await self._placed_in_time(model, arm.temperature, features, candidates, k)
        except TimeoutError:
            return _base_order(k, features, DEADLINE)
        except DataError:
            return _base_order(k, None, BAD_FEATURES)
        except Exception:
            logger.exception("arm %s: the model failed", arm.name)
            return _base_order(k, features, MODEL_ERROR)
        finally:
            self._monitor.model_seconds.observe(time.perf_counter() - started)

    async def _shared(self, deployment: Deployment, request: RerankRequest, candidates: Candidates) -> _Slate:
        """Let two arms fill one slate; if either of them fails, nobody's order is shown."""
        arms = deployment.experiment.arms
        slates = await asyncio.gather(*(self._order(deployment, arm, request, candidates) for arm in arms))
        failed = next((slate for slate in slates if slate.fallback is not None), None)
        if failed is not None:
            return failed
        a, b = (slate.shown for slate in slates)
        shown, teams = interleave(a, b, len(a), np.random.default_rng(secrets.randbits(128)))
        return _Slate(
            shown,
            slates[0].features,
            model="+".join(slate.model or BASE for slate in slates),
            log_probabilities=log_propensities(a, b, shown),
            was_drawn=True,
            draft=Draft(arms[0].name, arms[1].name, "".join(teams)),
        )

    async def _placed_in_time(
        self, model: ServedModel, temperature: float | None, features: FloatArray, candidates: Candidates, k: int
    ) -> _Slate:
        """Let the model order the candidates: at once if that is quickly done, in a thread if it may take long."""
        task = partial(_place, model, temperature, features, candidates, k)
        if not model.runtime.is_quick(len(features)):
            work = self._threads.submit(task)
            self._at_work.add(work)
            work.add_done_callback(self._at_work.discard)
            return await asyncio.wait_for(asyncio.wrap_future(work), self._patience.deadline)
        started = time.perf_counter()
        slate = task()
        if time.perf_counter() - started > self._patience.deadline:
            raise TimeoutError
        return slate

    def _answer(
        self, slate_id: str | None, arm: Arm, request: RerankRequest, candidates: Candidates, slate: _Slate
    ) -> RerankAnswer:
        self._monitor.slates.labels(arm.name).inc()
        if slate.fallback is not None:
            self._monitor.fallbacks.labels(arm.name, slate.fallback).inc()
        return RerankAnswer(
            slate_id,
            arm.name,
            [candidates.ids[item] for item in slate.shown],
            fallback=slate.fallback is not None,
            reason=slate.fallback or UNSET,
            probabilities=_chances(slate) if request.explain else UNSET,
        )

    # Logging

    async def _committed(self, write: Callable[[], Future[Outcome]]) -> Outcome:
        """Wait for a commit, but not for ever: while one is overdue, the next ones fail at once."""
        started = time.perf_counter()
        try:
            if self._stuck:
                self.store.give_up_after(_PATIENCE_WITH_A_GROUP * self._patience.log)
                raise LogError("the log does not answer")
            outcome = await self._in_time(write())
            self._last_write_failed = False
            return outcome
        except Seq2SlateError as error:
            self._last_write_failed = True
            self._monitor.log_failures.inc()
            logger.warning("%s", error)
            raise error if isinstance(error, LogError) else LogError(str(error)) from error
        finally:
            self._monitor.log_seconds.observe(time.perf_counter() - started)

    async def _in_time(self, future: Future[Outcome]) -> Outcome:
        """Wait for a write; by hand, since every request passes here and asyncio's own way takes half as long again."""
        loop = asyncio.get_running_loop()
        over = loop.create_future()

        def wake(_: Future[Outcome]) -> None:
            if not loop.is_closed():  # as it is if the write outlives the service
                loop.call_soon_threadsafe(_end, over)

        future.add_done_callback(wake)
        timer = loop.call_later(self._patience.log, _end, over)
        try:
            await over
        except asyncio.CancelledError:  # nobody will see the answer
            future.cancel()
            raise
        finally:
            timer.cancel()
        if future.done():
            return future.result()
        if not future.cancel():  # it is being written: its fate is open until the database speaks
            self._stuck.add(future)  # type: ignore[arg-type]
            future.add_done_callback(self._is_not_stuck)
        raise LogError(f"{self.store.name}: no commit within {self._patience.log:g} s")

    def _is_not_stuck(self, future: Future[Outcome]) -> None:
        """Let writes through again, and count one that came through although nobody was told."""
        if future.exception() is None:
            self._monitor.late_commits.inc()
        self._stuck.discard(future)


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _place(
    model: ServedModel,
    temperature: float | None,
    features: FloatArray,
    candidates: Candidates,
    k: int,
) -> _Slate:
    """Let a model order the candidates; may run in a thread."""
    generator = None if temperature is None else torch.Generator().manual_seed(secrets.randbits(63))
    placed, logs = model.runtime.slate(
        features,
        k,
        categorical=candidates.categorical,
        context=candidates.context,
        generator=generator,
        temperature=temperature or 1.0,
    )
    shown: list[int] = placed.tolist()
    log_probabilities: list[float] = logs.tolist()
    if len(shown) != k or len(set(shown)) != k or min(shown) < 0 or not all(map(isfinite, log_probabilities)):
        raise RuntimeError("the model did not place each item at most once, with a probability")
    return _Slate(shown, features, model.fingerprint, log_probabilities, was_drawn=temperature is not None)


def _chances(slate: _Slate) -> list[float] | None:
    """Return the probability of each choice; None if nothing was chosen."""
    logs = slate.log_probabilities
    return None if logs is None else [exp(min(log, 0.0)) for log in logs]


def _base_order(k: int, features: FloatArray | None, fallback: str | None) -> _Slate:
    return _Slate(list(range(k)), features, fallback=fallback)


def _impression(
    slate_id: str,
    deployment: Deployment,
    arm: Arm,
    unit: str,
    candidates: Candidates,
    slate: _Slate,
    started: float,
) -> Impression:
    """Return what is logged; features that nobody can learn from are left out, all of them."""
    usable = slate.features is not None
    names = deployment.feature_names(arm) or ()
    features = slate.features if slate.features is not None else np.zeros((len(candidates.ids), 0), np.float32)
    return Impression(
        slate_id=slate_id,
        at=time.time(),
        unit=unit,
        experiment=deployment.experiment.name,
        arm=arm.name,
        items=candidates.ids,
        shown=slate.shown,
        features=features,
        latency_ms=(time.perf_counter() - started) * 1e3,
        feature_names=names if usable else (),
        categorical=candidates.categorical if usable else {},
        context=candidates.context if usable else None,
        model=slate.model,
        log_propensities=slate.log_probabilities if slate.was_drawn else None,
        fallback=slate.fallback,
        draft=slate.draft,
    )
