"""Several processes ask one: here, several connections."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.device.remote.base import Batch, RemoteError
from pytest_nvfp4.device.remote.broker import Broker, BrokerRemote
from pytest_nvfp4.device.remote.cache import RemoteResultCache, draws_of
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.toolchain.sealed_files import SealedFiles

from .fakes import FakeRemote, batch, job


@pytest.fixture
def remote() -> FakeRemote:
    return FakeRemote()


@pytest.fixture
def broker(remote: FakeRemote) -> Iterator[Broker]:
    session = RemoteSession(remote, containers=2)
    made = Broker(session)
    yield made
    session.close()
    made.close()


def asking(broker: Broker) -> RemoteSession:
    return RemoteSession(BrokerRemote(broker.address, name="fake"), containers=100)


def test_two_that_ask_the_same_get_one_answer(broker: Broker, remote: FakeRemote) -> None:
    one, two = asking(broker), asking(broker)
    (first,) = one.add([Batch(jobs=(job(1, seed=1),))])
    first.wait()
    (second,) = two.add([Batch(jobs=(job(1, seed=2).model_copy(update={"id": "its own"}),))])
    result = second.wait()
    assert result.batch == second.batch.id
    assert [(one.job, one.status) for one in result.results] == [("its own", "passed")]
    assert len(remote.sent) == 1
    assert draws_of(second.batch.jobs[0]) == draws_of(remote.sent[0].jobs[0]) == (1, 1001), "what it was made with"
    one.close()
    two.close()


def test_who_wants_an_answer_with_given_draws_gets_no_other(broker: Broker, remote: FakeRemote) -> None:
    one = asking(broker)
    requests = one.add([Batch(jobs=(job(1, seed=seed),), exact=True) for seed in (1, 2, 1)])
    assert [draws_of(request.batch.jobs[0])[0] for request in requests if request.wait()] == [1, 2, 1]
    assert len(remote.sent) == 2
    one.close()


def test_of_what_is_known_in_part_each_is_told_with_its_own_draws(remote: FakeRemote, tmp_path: Path) -> None:
    for number, seed, sent in ((1, 5, ["job-1"]), (2, 6, ["job-2"])):
        session = RemoteSession(remote, cache=RemoteResultCache(SealedFiles(tmp_path), remote="fake"), reuse=True)
        made, remote.sent = Broker(session), []
        one = asking(made)
        (request,) = one.add([Batch(jobs=tuple(job(which, seed=seed) for which in range(1, number + 1)))])
        assert [result.job for result in request.wait().results] == ["job-1", "job-2"][:number]
        assert [asked.id for batch in remote.sent for asked in batch.jobs] == sent
        one.close()
        session.close()
        made.close()
    assert [draws_of(asked)[0] for asked in request.batch.jobs] == [5, 6]


def test_the_end_of_one_leaves_what_it_asked_for_to_the_others(broker: Broker, remote: FakeRemote) -> None:
    remote.reply = lambda _: None
    one = asking(broker)
    one.add([batch(1)])
    while not remote.sent:
        pass
    one.close()
    asking(broker).add([batch(1)])
    assert remote.cancelled == []


def test_trouble_is_passed_on(broker: Broker, remote: FakeRemote) -> None:
    remote.reply = lambda _: RemoteError("login", "no token", "log in")
    (request,) = asking(broker).add([batch(1)])
    with pytest.raises(RemoteError, match="no token; log in") as caught:
        request.wait()
    assert caught.value.kind == "login"


def test_the_end_of_the_broker_ends_every_wait(broker: Broker, remote: FakeRemote) -> None:
    remote.reply = lambda _: None
    (request,) = asking(broker).add([batch(1)])
    while not remote.sent:
        pass
    broker._session.close()
    with pytest.raises(RemoteError):
        request.wait()


def test_only_its_user_may_enter(broker: Broker) -> None:
    assert stat.S_IMODE(Path(broker.address).parent.stat().st_mode) == 0o700
