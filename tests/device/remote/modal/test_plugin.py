"""``pytest --nvfp4-remote=modal`` as a user runs it; the container's device is the simulator, or torch on the CPU."""

from __future__ import annotations

import contextlib
import re
import signal
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import LONGEST_S

from ..loopback import Loopback
from .user import KERNELS, SM100, SMALL, User

HANGS_THERE = """
import os
import time


def custom_kernel(data):
    if "nvfp4-tmp-job-" in os.getcwd():
        time.sleep(600)
"""
SHIPPED = ("--nvfp4-problem=40x128x512", "--nvfp4-family=pow2_exact")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of all tests here: a kernel that several of them use is compiled once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def host_server() -> Iterator[Loopback]:
    with Loopback(backend="host") as server:
        yield server


@pytest.fixture(scope="module")
def simulating() -> Iterator[Loopback]:
    with Loopback(backend="sim") as server:
        yield server


@pytest.fixture
def user(host_server: Loopback, tmp_path: Path, cache: Path) -> User:
    host_server.forget()
    made = User(host_server, tmp_path, cache=cache)
    made.write("kernel.py", (KERNELS / "honest.py").read_text())
    return made


@pytest.fixture
def shipped(simulating: Loopback, tmp_path: Path, cache: Path) -> User:
    """The shipped kernel, and one that takes the first k-tile's scales of B for all of them."""
    simulating.forget()
    made = User(simulating, tmp_path, cache=cache)
    text = SM100.read_text()
    made.write("sm100.py", text)
    wrong = text.replace("tBgSFB[None, k_tile], tBsSFB", "tBgSFB[None, 0], tBsSFB")
    assert wrong != text
    made.write("wrong.py", wrong)
    return made


@pytest.mark.slow
def test_the_shipped_kernel_is_verified_there_and_a_rerun_pays_for_nothing(shipped: User) -> None:
    server = shipped.server
    first = shipped.run("sm100.py", "wrong.py", "-k", "verify", "--junitxml=report.xml", *SHIPPED)
    assert "1 failed, 1 passed" in first, first
    assert "failed on 40x128x512 with inputs 'pow2_exact'" in first
    assert re.search(r"^2 done; \d+ s, about \$", first, re.MULTILINE), "one job a kernel"
    assert re.search(r"^results of: simulated NVIDIA B200, sm_100$", first, re.MULTILINE), "and not of a B200"
    assert re.search(r"^ta-\d+, image im-loopback", first, re.MULTILINE)
    named = [(one.get("name"), one.get("value")) for one in ET.parse(shipped.folder / "report.xml").iter("property")]
    device, written = ("nvfp4_device", "simulated NVIDIA B200, sm_100"), ("nvfp4_written_by", "C by 1 kernel")
    assert sorted(named) == [device, device, written], "the wrong kernel has no writer: its C was not accepted"
    assert server.count("FunctionMap") == 2
    assert server.count("AppClientDisconnect") == 1
    again = shipped.run("sm100.py", "wrong.py", "--lf", "-k", "verify", *SHIPPED)
    assert "1 failed" in again, again
    assert "1 from earlier sessions" in again
    assert server.count("FunctionMap") == 2
    assert server.count("AppCreate") == 1, "nothing was contacted"
    # Whoever asks for a real B200 later is not given a simulator's answer, kept or fresh.
    real = shipped.run("sm100.py", "-k", "verify", "--nvfp4-resume", *SHIPPED, NVFP4_MODAL_BACKEND="cuda")
    assert "from earlier sessions" not in real
    assert "1 failed" in real or "1 skipped" in real, real
    assert server.count("FunctionMap") == 3
    shipped.assert_no_secret(first, again, real)


@pytest.mark.slow
def test_test_processes_share_one_app(shipped: User) -> None:
    pytest.importorskip("xdist")
    said = shipped.run("sm100.py", "wrong.py", "-k", "verify", "-n2", "--nvfp4-remote-containers=2", *SHIPPED)
    assert "1 failed, 1 passed" in said, said
    assert "results of: simulated NVIDIA B200" in said
    assert shipped.server.count("AppCreate") == 1
    assert shipped.server.count("FunctionMap") == 2
    shipped.assert_no_secret(said)


@pytest.mark.slow
def test_checks_on_torchs_cpu_as_device(user: User) -> None:
    wrong = (KERNELS / "honest.py").read_text().replace("[:rows, : k // 16]", "[:rows, : k // 16].roll(1, dims=1)")
    user.write("wrong.py", wrong)
    given = ("kernel.py", "wrong.py", "-k", "verify", *SMALL)
    user.write("broken.py", "import no_such_module\n\n\ndef custom_kernel(data): ...\n")
    dry = user.run(*given, "broken.py", "--nvfp4-remote-dry-run", MODAL_TOKEN_SECRET="")
    assert "2 jobs in 2 calls, 1 at once" in dry, "it needs no token: " + dry
    assert re.search(r"^not counted: broken\.py::verify\[.*it sends no job", dry, re.MULTILINE), dry
    assert "no time is known of 2 calls: at most 1200 s by their deadlines, $2" in dry
    assert user.server.calls == [], "nothing is contacted"
    said = user.run(*given)
    assert "2 failed, 2 passed" in said, said
    assert user.server.count("FunctionMap") == 2
    known = user.run(*given, "--nvfp4-remote-dry-run", "--nvfp4-gpu-price=1000")
    assert re.search(r"about \d+ s of containers, \$\d.* at \$1000.44 an hour \(\d+ s as these calls", known), known
    assert "2 of them have stored results" in known
    assert user.server.count("FunctionMap") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("--collect-only", "kernel.py"),
        pytest.param(("-k", "launch", "kernel.py"), marks=pytest.mark.slow),
        ("test_other.py",),
    ],
)
def test_without_a_device_check_nothing_is_contacted(user: User, args: tuple[str, ...]) -> None:
    user.write("test_other.py", "import sys\n\n\ndef test_it():\n    assert 'modal' not in sys.modules\n")
    said = user.run(*args)
    assert "INTERNALERROR" not in said
    if args == ("test_other.py",):
        assert "1 passed" in said, said
    assert user.server.calls == []


@pytest.mark.slow
def test_a_simulator_has_no_clock(user: User) -> None:
    pytest.importorskip("pytest_benchmark")
    said = user.run("kernel.py", "-k", "benchmark", "-rs", *SMALL, benchmark=True)
    assert "2 skipped" in said, said
    assert "has no clock" in said
    assert user.server.count("FunctionMap") == 2, "two measurements, sent ahead"
    user.server.forget()
    said = user.run("kernel.py", "-k", "benchmark", "-rs", "--nvfp4-device=sim", *SMALL, benchmark=True)
    assert "2 skipped" in said, said
    assert "has no clock" in said
    assert user.server.calls == [], "that is known here"


@pytest.mark.slow
def test_an_unreachable_remote_fails_the_checks_and_says_why(user: User) -> None:
    said = user.run("kernel.py", "-k", "verify", *SMALL, MODAL_TOKEN_SECRET="as-not-this-one")
    assert "2 failed" in said, said
    assert "not run on modal: Modal refused the token" in said
    assert "as-not-this-one" not in said


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_missing_token_is_noticed_before_anything_is_traced(
    host_server: Loopback, tmp_path: Path, processes: int
) -> None:
    pytest.importorskip("xdist")
    host_server.forget()
    user = User(host_server, tmp_path)
    user.write("kernel.py", (KERNELS / "honest.py").read_text())
    said = user.run("kernel.py", "-k", "verify", f"-n{processes}", *SMALL, MODAL_TOKEN_SECRET="")
    assert "2 failed" in said, said
    assert "not run on modal: no token for Modal is set (token_secret is missing)" in said
    assert processes or "checks on a device fail, and are not sent: modal: no token" in said
    assert list(user.cache.rglob("trace.json")) == [], "nothing is traced"
    assert host_server.calls == []


@pytest.mark.slow
def test_an_interrupt_cancels_and_leaves_nothing(user: User) -> None:
    user.write("kernel.py", HANGS_THERE)
    server = user.server
    process = user.start("kernel.py", "-k", "verify", *SMALL)
    server.wait_for(lambda: server.count("FunctionMap"))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 2, said
    assert server.count("FunctionCallCancel") == 1
    assert server.count("AppClientDisconnect") == 1
    assert "KeyboardInterrupt" in said
    server.wait_for(lambda: not any(one.alive for one in server.service.containers.values()))


def test_an_interrupt_cancels_before_anything_else_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test processes of xdist that wait for answers would be waited for, and then killed."""
    from pytest_nvfp4.plugin.remote import RemoteRun

    closed: list[str] = []
    monkeypatch.setattr(RemoteRun, "close", lambda _: closed.append("closed"))
    manager = pytest.PytestPluginManager()
    run = RemoteRun.__new__(RemoteRun)
    run._ending = contextlib.ExitStack()
    manager.register(run)
    with run._ending:
        manager.hook.pytest_keyboard_interrupt(excinfo=None)
    assert closed == ["closed"]


@pytest.mark.slow
def test_an_interrupt_with_test_processes(user: User) -> None:
    pytest.importorskip("xdist")
    user.write("kernel.py", HANGS_THERE)
    server = user.server
    process = user.start("kernel.py", "-k", "verify", "-n2", *SMALL)
    server.wait_for(lambda: server.count("FunctionMap"))
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 2, said
    assert server.count("FunctionCallCancel") == server.count("FunctionMap")
    assert server.count("AppClientDisconnect") == 1
    assert "INTERNALERROR" not in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--nvfp4-gpu=B200+",), "--nvfp4-gpu"),
        (("--nvfp4-remote=moodal",), "modal"),
        (("--nvfp4-remote=modal:x",), "has no targets"),
        (("--nvfp4-device=local",), "give one of them"),
        (("--nvfp4-remote-containers=0",), "1 to 256"),
        (("--nvfp4-remote-max-cost=0",), "more than zero"),
        (("--nvfp4-remote-max-cost=inf",), "more than zero"),
        (("--nvfp4-remote-max-cost=2", "--nvfp4-gpu=A100"), "--nvfp4-gpu-price"),
        (("--nvfp4-gpu-price=nan",), "0 to 10000"),
        (("--nvfp4-remote-dry-run", "-n2"), "add -n0"),
        (("--nvfp4-remote-timeout=0",), "more than 0"),
    ],
)
def test_options_that_cannot_be_used(pytester: pytest.Pytester, args: tuple[str, ...], said: str) -> None:
    result = pytester.runpytest_inprocess(
        "-p", "no:hypothesispytest", "-p", "no:benchmark", "--nvfp4-remote=modal", *args
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()
