"""``pytest --nvfp4-remote=modal`` as a user runs it, with torch's operations on the CPU as the container's device."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..loopback import Loopback
from ..loopback.server import TOKEN_ID, TOKEN_SECRET

KERNELS = Path(__file__).parents[2] / "kernels"
SMALL = ("--nvfp4-problem=7x128x256", "--nvfp4-problem=3x128x256", "--nvfp4-family=pow2_exact")
PLANTED = "planted-secret-0f9d3c"
HANGS_THERE = """
import os
import time


def custom_kernel(data):
    if "nvfp4-job-" in os.getcwd():
        time.sleep(600)
"""


@pytest.fixture(scope="module")
def host_server() -> Iterator[Loopback]:
    with Loopback(backend="host") as server:
        yield server


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "kernel.py").write_text((KERNELS / "honest.py").read_text())
    return tmp_path


def environment(server: Loopback, project: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "PYTEST_"))}
    secrets = {"MY_API_KEY": PLANTED, "MODAL_PLANTED": PLANTED, "AWS_SECRET_ACCESS_KEY": PLANTED}
    return {**kept, **server.environ(), **secrets, "NVFP4_CACHE_DIR": str(project / "cache")}


def command(*args: str) -> list[str]:
    lean = ("-p", "no:hypothesispytest", "-p", "no:syrupy", "--nvfp4-remote=modal", "-o", "addopts=")
    return [sys.executable, "-m", "pytest", "-p", "no:benchmark", *lean[:2], *lean[4:], *args]


def run(server: Loopback, project: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args),
        env=environment(server, project),
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_checks_run_there_and_a_rerun_pays_for_nothing(host_server: Loopback, project: Path) -> None:
    wrong = (project / "kernel.py").read_text().replace("[:rows, : k // 16]", "[:rows, : k // 16].roll(1, dims=1)")
    (project / "wrong.py").write_text(wrong)
    host_server.calls.clear()
    host_server.received.clear()
    first = run(host_server, project, "kernel.py", "wrong.py", "-k", "verify", *SMALL)
    assert "2 failed, 2 passed" in first.stdout, first.stdout + first.stderr
    assert "failed on 7x128x256 with inputs 'pow2_exact'" in first.stdout
    assert re.search(r"^2 done; \d+ s, about \$", first.stdout, re.MULTILINE), "one job a kernel"
    assert re.search(r"^ta-\d+, image im-loopback", first.stdout, re.MULTILINE)
    assert host_server.count("FunctionMap") == 2
    assert host_server.count("AppClientDisconnect") == 1
    again = run(host_server, project, "--lf", "-k", "verify", *SMALL, "kernel.py", "wrong.py")
    assert "2 failed" in again.stdout, again.stdout + again.stderr
    assert "1 from earlier sessions" in again.stdout
    assert host_server.count("FunctionMap") == 2
    assert host_server.count("AppCreate") == 1, "nothing was contacted"
    assert_no_secret(host_server, project, first.stdout + first.stderr + again.stdout + again.stderr)


def assert_no_secret(server: Loopback, project: Path, said: str) -> None:
    """No secret of the environment in what was said, sent, kept, or given to a container."""
    places = {"output": said.encode(), "requests": b"\0".join(server.received)}
    places["mounts"] = b"\0".join(server.service.files.values())
    places["blobs"] = b"\0".join(server.blobs.data.values())
    for folder in (project, server.folder):
        for path in folder.rglob("*"):
            if path.is_file() and "site-packages" not in path.parts:
                places[str(path)] = path.read_bytes()
    for secret in (PLANTED, TOKEN_ID, TOKEN_SECRET):
        assert [name for name, data in places.items() if secret.encode() in data] == []


@pytest.mark.slow
def test_test_processes_share_one_app(host_server: Loopback, project: Path) -> None:
    pytest.importorskip("xdist")
    host_server.calls.clear()
    done = run(host_server, project, "kernel.py", "-k", "verify", "-n2", *SMALL, "--nvfp4-remote-containers=2")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert host_server.count("AppCreate") == 1
    assert host_server.count("FunctionMap") == 2


@pytest.mark.parametrize(
    "args", [("--collect-only", "kernel.py"), ("-k", "launch", "kernel.py"), ("test_other.py",), ("--help",)]
)
def test_without_a_device_check_nothing_is_contacted(
    host_server: Loopback, project: Path, args: tuple[str, ...]
) -> None:
    (project / "test_other.py").write_text(
        "import sys\n\n\ndef test_it() -> None:\n    assert 'modal' not in sys.modules\n"
    )
    host_server.calls.clear()
    done = run(host_server, project, *args)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr
    if args == ("test_other.py",):
        assert "1 passed" in done.stdout, done.stdout
    assert host_server.calls == []


@pytest.mark.slow
def test_benchmarks_of_a_file_are_one_batch(host_server: Loopback, project: Path) -> None:
    pytest.importorskip("pytest_benchmark")
    host_server.calls.clear()
    line = [*command("kernel.py", "-k", "benchmark", "-rs", *SMALL)]
    line[line.index("no:benchmark") - 1 : line.index("no:benchmark") + 1] = []
    done = subprocess.run(
        line,
        env=environment(host_server, project),
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 skipped" in done.stdout, done.stdout + done.stderr
    assert "has no clock" in done.stdout
    assert host_server.count("FunctionMap") == 1


def test_an_unreachable_remote_fails_the_checks_and_says_why(host_server: Loopback, project: Path) -> None:
    environ = environment(host_server, project) | {"MODAL_TOKEN_SECRET": "as-not-this-one"}
    done = subprocess.run(
        command("kernel.py", "-k", "verify", *SMALL),
        env=environ,
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 failed" in done.stdout, done.stdout + done.stderr
    assert "not run on modal: Modal refused the token" in done.stdout
    assert "as-not-this-one" not in done.stdout + done.stderr


def test_an_interrupt_cancels_and_leaves_nothing(host_server: Loopback, project: Path) -> None:
    (project / "kernel.py").write_text(HANGS_THERE)
    host_server.calls.clear()
    process = subprocess.Popen(
        command("kernel.py", "-k", "verify", *SMALL),
        env=environment(host_server, project),
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    host_server.wait_for(lambda: host_server.count("FunctionMap"), seconds=60)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=40)
    assert process.returncode == 2, said
    assert time.monotonic() - start < 30
    assert host_server.count("FunctionCallCancel") == 1
    assert host_server.count("AppClientDisconnect") == 1
    assert "KeyboardInterrupt" in said
    host_server.wait_for(lambda: not any(one.alive for one in host_server.service.containers.values()))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--nvfp4-gpu=B200+",), "--nvfp4-gpu"),
        (("--nvfp4-remote=moodal",), "modal"),
        (("--nvfp4-remote=modal:x",), "takes no target"),
        (("--nvfp4-device=local",), "give one of them"),
        (("--nvfp4-remote-containers=0",), "1 to 256"),
        (("--nvfp4-remote-max-cost=0",), "more than zero"),
        (("--nvfp4-remote-timeout=0",), "more than 0"),
    ],
)
def test_options_that_cannot_be_used(pytester: pytest.Pytester, args: tuple[str, ...], said: str) -> None:
    result = pytester.runpytest_inprocess(
        "-p", "no:hypothesispytest", "-p", "no:benchmark", "--nvfp4-remote=modal", *args
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stderr.str()
