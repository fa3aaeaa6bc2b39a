"""The real client against the loopback server, and its real container entrypoint in another environment."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import modal
import pytest

from pytest_nvfp4.device.remote.base import Batch, BatchResult, PythonProgram, RemoteError
from pytest_nvfp4.device.remote.modal import client
from pytest_nvfp4.device.remote.modal.build import _ignore
from pytest_nvfp4.device.remote.modal.client import ModalRemote
from pytest_nvfp4.device.remote.modal.response import read_response
from pytest_nvfp4.device.remote.serialization import compress, pack_result
from pytest_nvfp4.device.remote.session import RemoteSession
from pytest_nvfp4.device.result import DeviceInfo, Result
from tests.cli.helpers import ROOT, git
from tests.waiting import LONGEST_S

from ..fakes import batch, job
from ..loopback import Loopback
from ..loopback.server import TOKEN_SECRET

Make = Callable[..., ModalRemote]

SEQUENCE = (  # noqa: SIM905
    "ClassGet AppCreate FunctionPrecreate MountGetOrCreate ImageGetOrCreate MountBatchedCheckExistence "
    "MountPutFile MountGetOrCreate FunctionCreate ClassCreate AppPublish FunctionMap FunctionGetOutputs "
    "AppClientDisconnect"
).split()
"""What an app of a session says, without repeats, heartbeats and what depends on timing. A client that says something
else is one that nobody has tried this package with."""


UNSTEADY = ("AppHeartbeat", "EnvironmentGetOrCreate")
"""RPCs that come by the clock, and once a process."""


def answers(remote: ModalRemote, batches: list[Batch]) -> list[Any]:
    calls = remote.submit(batches)
    ends = {}
    while len(ends) < len(calls):
        for end in remote.collect([one for one in calls if one.id not in ends], timeout_s=LONGEST_S):
            ends[end.id] = end
    return [ends[one.id].result or ends[one.id].error for one in calls]


@pytest.mark.slow
def test_the_sequence_of_a_session(own_server: Callable[..., Loopback], remote: Make) -> None:
    server = own_server()
    one = remote()
    (answer,) = answers(one, [batch()])
    assert answer.results[0].job == "job-0"
    one.stop()
    said = [name for name, _ in groupby(name for name in server.calls if name not in UNSTEADY)]
    sequence = [name for index, name in enumerate(said) if said.index(name) == index or name == "MountGetOrCreate"]
    assert sequence == SEQUENCE, (
        f"modal {modal.__version__} speaks differently: look at what changed, then at this list"
    )


@pytest.mark.slow
def test_the_container_has_only_what_was_mounted(server: Loopback, remote: Make) -> None:
    program = PythonProgram(
        source="import sys, pytest_nvfp4.device, os\n"
        "print(pytest_nvfp4.__file__)\n"
        "try:\n import pytest_nvfp4.plugin\nexcept ImportError as error: print(error)\n"
        "print(sys.argv[1:], open('data').read(), sys.stdin.read(), file=sys.stderr)\nsys.exit(7)",
        arguments=("a", "b"),
        files={"data": b"content"},
        stdin=b"typed",
    )
    said: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def take(stream: str, data: bytes) -> None:
        said[stream] += data

    assert remote().execute(program, on_output=take) == 7
    path, error = said["stdout"].decode().splitlines()
    assert path.startswith(str(server.folder / "roots"))
    assert "No module named 'pytest_nvfp4.plugin'" in error
    assert said["stderr"].decode().strip() == "['a', 'b'] content typed"


@pytest.mark.slow
def test_what_a_container_is_told_to_be(server: Loopback, remote: Make) -> None:
    answers(remote(gpu="B200", containers=3, timeout_s=777.0, single_use=True), [batch()])
    definition = list(server.service.functions.values())[-1].definition
    assert definition is not None
    assert definition.resources.gpu_config.gpu_type == "B200"
    assert definition.resources.gpu_config.count == 1
    assert definition.untrusted, "no access to Modal from there"
    assert definition.block_network
    assert definition.single_use_containers
    assert definition.retry_policy.retries == 0, "the client would retry without end"
    assert definition.autoscaler_settings.max_containers == 3
    assert definition.autoscaler_settings.min_containers == 0
    assert definition.timeout_secs == 777
    assert not definition.secret_ids
    assert not definition.volume_mounts
    assert not definition.function_serialized
    assert not definition.class_serialized


@pytest.mark.slow
def test_batches_fan_out_over_containers_and_come_back_to_their_own(server: Loopback, remote: Make) -> None:
    session = RemoteSession(remote(containers=2), containers=2)
    requests = session.add([batch(number) for number in range(20)])
    done = [request.wait() for request in requests]
    assert [answer.results[0].job for answer in done] == [f"job-{number}" for number in range(20)]
    assert len({answer.place.container for answer in done}) <= 2
    assert done[0].place.versions["python"]
    session.close()
    server.wait_for(lambda: not any(one.alive for one in server.service.containers.values()))


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_one_container_a_batch_where_asked(remote: Make) -> None:
    done = answers(remote(single_use=True), [batch(1), batch(2)])
    assert len({answer.place.container for answer in done}) == 2


def test_no_simulator_passes_as_a_gpu(monkeypatch: pytest.MonkeyPatch, remote: Make) -> None:
    """Whatever a container is made to run, an answer of a simulator is one only where one was asked for."""
    device = DeviceInfo(name="NVIDIA B200", capability=(10, 0), simulated=True)
    asked = batch()
    answer = BatchResult(batch=asked.id, results=(Result(job="job-0", status="passed", device=device),))
    data = compress(pack_result(answer))
    for backend, status in (("cuda", "unsupported"), ("sim", "passed")):
        monkeypatch.setenv("NVFP4_MODAL_BACKEND", backend)
        one = remote()
        taken = read_response(data, options=one.options, settings=one.settings)
        assert taken.results[0].status == status
        assert (one.cache_scope == "") == (backend == "cuda"), "nor is a kept one"
    real = answer.model_copy(
        update={
            "results": (Result(job="job-0", status="passed", device=device.model_copy(update={"simulated": False})),)
        }
    )
    monkeypatch.setenv("NVFP4_MODAL_BACKEND", "cuda")
    one = remote()
    taken = read_response(compress(pack_result(real)), options=one.options, settings=one.settings)
    assert taken.results[0].status == "passed"


def test_what_a_container_has(idle_server: Loopback, remote: Make) -> None:
    remote(gpu="H100!", cpus=2.5, memory_gib=8, profilers=True).submit([batch()])
    *_, definition = (one.definition for one in idle_server.service.functions.values())
    assert definition is not None
    resources = definition.resources
    assert (resources.gpu_config.gpu_type, resources.milli_cpu, resources.memory_mb) == ("H100!", 2500, 8 << 10)
    said = "\n".join(line for image in idle_server.service.images for line in image.dockerfile_commands)
    assert "nsight-compute-2025.2.1 nsight-systems-2025.5.2" in said
    idle_server.service.images.clear()
    remote().submit([batch()])
    assert "nsight" not in "".join(line for image in idle_server.service.images for line in image.dockerfile_commands)


@pytest.mark.parametrize("backend", ["sim", "cuda"])
def test_the_simulator_is_mounted_only_where_it_is_the_device(backend: str) -> None:
    stays = _ignore(backend)
    assert stays(Path("sim/monitor.py")) == (backend == "cuda")
    assert stays(Path("plugin/options.py"))
    assert not stays(Path("device/job.py"))


def test_a_worker_on_a_gpu_starts_without_the_simulator() -> None:
    """The import contracts see its later imports; these are the ones of its start."""
    start = "import sys; sys.modules['pytest_nvfp4.sim'] = None; import pytest_nvfp4.device.worker.{}"
    for module in ("__main__", "program"):
        subprocess.run([sys.executable, "-c", start.format(module)], check=True, timeout=LONGEST_S)


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_a_backend_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch, remote: Make) -> None:
    monkeypatch.setenv("NVFP4_MODAL_BACKEND", "nothing:run")
    (error,) = answers(remote(), [batch()])
    assert isinstance(error, RemoteError)
    assert error.kind == "setup"
    assert "no backend 'nothing:run'" in str(error)


def test_no_log_tells_the_token(idle_server: Loopback, remote: Make, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG, the client's HTTP/2 library logs every header of a request."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("hpack").setLevel(logging.NOTSET)
    remote().submit([batch()])
    assert any(TOKEN_SECRET.encode() in one for one in idle_server.headers)
    assert TOKEN_SECRET not in caplog.text


@pytest.mark.slow
def test_large_batches_go_by_way_of_blobs(server: Loopback, remote: Make) -> None:
    text = "\n".join(f"x{number} = {hash((number, 'salt'))}" for number in range(200_000))
    (answer,) = answers(remote(), [Batch(jobs=(job(text=text),))])
    assert answer.results[0].job == "job-0"
    assert server.count("BlobCreate") == 1


@pytest.mark.slow
def test_a_deployed_app(
    own_server: Callable[..., Loopback], remote: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, password = own_server(), b"planted-91c7"
    git("init", "-q", cwd=tmp_path)
    git("commit", "-q", "--allow-empty", "-m", "x", cwd=tmp_path)
    git("remote", "add", "origin", f"https://me:{password.decode()}@example.org/x.git", cwd=tmp_path)
    (tmp_path / "plain.py").write_text("import modal\n\napp = modal.App('plain')\n")
    for module, sent in (("plain", True), ("pytest_nvfp4.device.remote.modal.app", False)):
        server.received.clear()
        subprocess.run(
            [sys.executable, "-m", "modal", "deploy", "-m", module],
            env={**os.environ, "NVFP4_MODAL_CONTAINERS": "2", "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=LONGEST_S,
        )
        assert any(password in request for request in server.received) == sent, "the state of git is not sent"
    server.calls.clear()
    one = remote(deployed_app="pytest-nvfp4")
    (answer,) = answers(one, [batch()])
    assert answer.results[0].job == "job-0"
    one.stop()
    assert set(server.calls) <= {"ClassGet", "FunctionGet", "FunctionMap", "FunctionGetOutputs", "FunctionBindParams"}
    with pytest.raises(RemoteError, match="modal deploy -m") as caught:
        remote(deployed_app="another").submit([batch()])
    assert caught.value.kind == "setup"
    monkeypatch.setattr(client, "sent_code", lambda _: "another code")
    one, written = remote(deployed_app="pytest-nvfp4"), []
    (error,) = answers(one, [batch()])
    assert isinstance(error, RemoteError)
    assert error.kind == "version"
    assert "not that of the machine that sent the job" in str(error)
    assert one.execute(PythonProgram(source="print(1)"), on_output=lambda _, data: written.append(data)) == 2
    assert b"not that of the machine" in b"".join(written)


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_two_sessions_at_once(remote: Make) -> None:
    one, two = RemoteSession(remote()), RemoteSession(remote())
    requests = [*one.add([batch(number) for number in range(5)]), *two.add([batch(number) for number in range(5)])]
    containers = [request.wait().place.container for request in requests]
    assert not set(containers[:5]) & set(containers[5:])
    one.close()
    two.close()


@pytest.mark.slow
def test_status_and_warm(server: Loopback, remote: Make) -> None:
    for app in server.service.apps.values():  # of other tests
        server.service._end_app(app)
    one = remote()
    assert one.status().containers == 0
    with pytest.raises(RemoteError, match="runs nothing"):
        one.warm()
    assert one.status().containers == 1
    assert one.cost().seconds > 0
    server.calls.clear()
    status = remote().status()
    assert (status.reachable, status.containers) == (True, 1), "another session sees it too, and starts nothing"
    assert status.summary.startswith("app pytest-nvfp4-warm-")
    assert not {"AppCreate", "ImageGetOrCreate"} & set(server.calls)
    one.stop()
    assert remote().status().summary == "nothing of this tool runs"
