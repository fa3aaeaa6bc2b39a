"""Every wait ends, whatever fails on the way of an answer: an exception at each step, and answers of any shape."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pytest_nvfp4.device.answer import ANSWER
from pytest_nvfp4.device.remote.base import Batch, BatchResult, Cost, Place, RemoteCall, RemoteError
from pytest_nvfp4.device.remote.broker import Broker, BrokerRemote
from pytest_nvfp4.device.remote.cache import RemoteResultCache
from pytest_nvfp4.device.remote.modal.cost import Meter
from pytest_nvfp4.device.remote.pool import PoolTask, WorkerPool
from pytest_nvfp4.device.remote.progress import Progress
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.result import Result
from pytest_nvfp4.toolchain.sealed_files import SealedFiles
from tests.waiting import until

from .fakes import FakeRemote, batch, passed


class Unexpected(Exception):
    """What no code expects."""


def fail(*_: object, **__: object) -> Any:
    raise Unexpected("injected")


def ended(session: RemoteSession) -> list[str]:
    """How the requests of a session end: each does."""
    requests = session.add([batch(number) for number in range(3)])
    assert until(lambda: all(request.done for request in requests), within_s=60)
    session.close()
    return ["result" if request.error is None else request.error.problem for request in requests]


@pytest.mark.parametrize("step", ["submit", "collect", "cost", "cancel"])
def test_a_remote_that_fails_at_a_step_ends_all_waits(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = FakeRemote(lambda _: None)
    monkeypatch.setattr(remote, step, fail)
    how = ended(RemoteSession(remote, timeout_s=0.2, max_cost=1.0))
    assert all("injected" in words or "no result arrived" in words or "session" in words for words in how)
    assert any("injected" in words or "no result" in words for words in how)
    assert remote.stopped


@pytest.mark.parametrize("step", ["cache", "progress", "source", "combined", "checked"])
def test_an_answer_that_fails_at_a_step_ends_all_waits(
    step: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    cache = RemoteResultCache(SealedFiles(tmp_path), remote="fake")
    session = RemoteSession(FakeRemote(), cache=cache)
    match step:
        case "cache":
            monkeypatch.setattr(cache, "add", fail)
        case "progress":
            seen: list[Progress] = []

            def progress(now: Progress) -> None:
                seen.append(now)
                if len(seen) > 2:
                    raise Unexpected("injected")

            session = RemoteSession(FakeRemote(), on_progress=progress)
        case "source":
            monkeypatch.setattr(session, "_record_source", fail)
        case "combined":
            monkeypatch.setattr("pytest_nvfp4.device.remote.request.BatchRequest.combined", fail)
        case "checked":
            monkeypatch.setattr("pytest_nvfp4.device.remote.received.check_result", fail)
    with contextlib.suppress(Unexpected):
        assert all(words == "result" or "injected" in words or "session" in words for words in ended(session))


def yielding(make: Callable[[RemoteCall], RemoteCall]) -> FakeRemote:
    """A remote that ends each batch as it is told."""

    class Ends(FakeRemote):
        def collect(self, calls: Sequence[RemoteCall], *, timeout_s: float) -> Iterator[RemoteCall]:
            del timeout_s
            yield from map(make, calls)

    return Ends(lambda _: None)


def odd(batch: Batch, **fields: Any) -> BatchResult:
    """An answer with other fields, as an entry point's remote may build it."""
    return passed(batch).model_copy(update=fields)


@pytest.mark.parametrize(
    "make",
    [
        lambda call: call,
        lambda call: call.ended(error=RemoteError([], "an unhashable kind")),
        lambda call: call.ended(error=RemoteError("", "")),  # type: ignore[arg-type]
        lambda call: call.ended(result=odd(call.batch, results=())),
        lambda call: call.ended(result=odd(call.batch, results=(None,))),
        lambda call: call.ended(result=odd(call.batch, results=(Result(job="other", status="passed"),))),
        lambda call: call.ended(result=odd(call.batch, place=None)),
        lambda call: call.ended(result=odd(call.batch, batch="")),
    ],
    ids=["nothing", "unhashable", "empty kind", "no results", "no result", "another job", "no place", "no batch"],
)
def test_an_answer_of_any_shape_ends_its_wait(make: Callable[[RemoteCall], RemoteCall]) -> None:
    session = RemoteSession(yielding(make))
    (request,) = session.add([batch()])
    assert until(lambda: request.done, within_s=60)
    session.close()
    if request.result is not None:
        assert [finding.kind for finding in request.result.results[0].findings] == [ANSWER]


def test_what_fails_in_the_broker_is_an_error_of_who_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    session = RemoteSession(FakeRemote())
    broker = Broker(session)
    monkeypatch.setattr("pytest_nvfp4.device.remote.broker.draws_of", fail)
    asking = RemoteSession(BrokerRemote(broker.address, name="fake"))
    (request,) = asking.add([batch()])
    assert until(lambda: request.done, within_s=60)
    assert request.error is not None
    assert "injected" in str(request.error)
    for one in (asking, session):
        one.close()
    broker.close()


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "{}", '{"for": 1}', '{"for": ""}', '{"for": "ID", "result": "x"}', '{"for": "ID", "draws": 7}',
     '{"for": "ID", "result": "{}", "draws": []}', '{"for": "ID", "kind": "what"}', '{"for": "ID", "kind": ""}'],
)  # fmt: skip
def test_a_message_of_any_shape_ends_the_wait_for_it(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = RemoteSession(FakeRemote())
    broker = Broker(session)

    def send(connection: Any, sending: threading.Lock, asked: Batch, shared: object) -> None:
        del shared
        with sending, contextlib.suppress(OSError):
            connection.sendall(line.replace("ID", asked.id).encode() + b"\n")
            connection.shutdown(2)

    monkeypatch.setattr("pytest_nvfp4.device.remote.broker._send_result", send)
    asking = RemoteSession(BrokerRemote(broker.address, name="fake"))
    (request,) = asking.add([batch()])
    assert until(lambda: request.done, within_s=60), json.dumps(line)
    assert request.error is not None
    for one in (asking, session):
        one.close()
    broker.close()


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Unexpected("x"), RecursionError()])
def test_a_thread_of_the_pool_survives_what_its_batch_raises(error: BaseException) -> None:
    def run(task: PoolTask) -> BatchResult:
        if task.batch.jobs[0].id == "job-0":
            raise error
        return passed(task.batch)

    pool = WorkerPool(1, run)
    calls = pool.submit([batch(0), batch(1)])
    assert {ended.id: ended.error is None for ended in pool.collect(calls, timeout_s=60)} == {
        calls[0].id: False,
        calls[1].id: True,
    }
    pool.close(wait_s=5)


def test_a_batch_that_cannot_be_stopped_keeps_no_other_running() -> None:
    stopped, go = [], threading.Event()

    def run(task: PoolTask) -> BatchResult:
        task.on_stop = fail if task.worker == 0 else lambda: stopped.append(task.worker) or go.set()  # type: ignore[func-returns-value]
        assert go.wait(60)
        return passed(task.batch)

    pool = WorkerPool(2, run)
    pool.submit([batch(0), batch(1)])
    assert until(lambda: pool.counts[1] == 2)
    assert until(lambda: all(task.on_stop for task in list(pool._running.values())))
    pool.close(wait_s=5)
    assert stopped == [1]


@pytest.mark.parametrize("usd", [float("nan"), float("inf"), 2.0])
def test_a_cost_that_is_no_number_is_not_below_the_limit(usd: float) -> None:
    remote = FakeRemote(lambda _: None)
    remote.cost = lambda: Cost(usd * 3600, 1.0)  # type: ignore[method-assign]
    session = RemoteSession(remote, max_cost=1.0)
    (request,) = session.add([batch()])
    assert until(lambda: request.done, within_s=60)
    assert request.error is not None
    assert request.error.kind == "cost"
    session.close()


def test_seconds_that_a_container_reports_count_within_those_that_passed() -> None:
    now = [1000.0]
    meter = Meter("B200", 1, clock=lambda: now[0])
    meter.sent("a")
    now[0] += 10
    meter.ended("a", place=Place(container="c", startup_s=1e6), busy_s=1e6)
    assert meter.cost().seconds == 10
    meter.sent("b")
    now[0] += 10
    meter.ended("b", place=Place.model_construct(container="d", startup_s=-1e9), busy_s=-1e9)
    assert meter.cost().seconds == 10, "held for no time, and not for a negative one"
    meter.ended("unknown", place=Place(container="e"), busy_s=1e6)
    assert meter.cost().seconds <= 20
