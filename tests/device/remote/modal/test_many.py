"""Many checks, several sessions and faults in the middle of them, as a user meets them."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LONGEST_S

from ..loopback import Fault, Loopback
from .exact_jobs import executed_jobs
from .user import User

KERNEL = "def custom_kernel(data):\n    return [c for _, _, c in data[0]]\n"
"""It would return what was there before; what answers for it runs nothing (``loopback.devices.exact``)."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exact") / "log"


@pytest.fixture(scope="module")
def exact(log: Path) -> Iterator[Loopback]:
    with Loopback(backend="exact:run", environ={"NVFP4_EXACT_LOG": str(log)}) as server:
        yield server


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def project(server: Loopback, folder: Path, *, problems: int, cache: Path | None = None) -> User:
    """Somebody with as many problems, each a check of every kernel."""
    folder.mkdir(exist_ok=True)
    user = User(server, folder, cache=cache)
    lines = [f"problems.p{number} = {{ m = [{1 + number % 7}], n = 128, k = 256 }}" for number in range(problems)]
    names = json.dumps([f"p{number}" for number in range(problems)])
    user.write(
        "pyproject.toml",
        "\n".join(
            [
                "[tool.pytest.ini_options]",
                "[tool.pytest_nvfp4]",
                *lines,
                "[[tool.pytest_nvfp4.kernel]]",
                'path = "*.py"',
                'problems = ["p0"]',
                f"verify-problems = {names}",
            ]
        ),
    )
    return user


CHECKS = ("-k", "verify", "--nvfp4-family=pow2_exact", "-q", "--tb=line", "-p", "no:syrupy")


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "problems"), [((), 100), (("-n2",), 20)])
def test_hundreds_of_checks(
    exact: Loopback, tmp_path: Path, log: Path, cache: Path, processes: tuple[str, ...], problems: int
) -> None:
    """Five kernels on many problems, over four containers."""
    exact.forget()
    log.write_text("")
    user = project(exact, tmp_path, problems=problems, cache=cache)
    wrong = {f"k{kernel}.py": {f"p{number}" for number in range(kernel, problems, 9)} for kernel in range(5)}
    for name, chosen in wrong.items():
        user.write(name, f"WRONG = {chosen!r}\n{KERNEL}")
    user.write(
        "conftest.py",
        # Not ru_maxrss, which begins with that of the process that started this one.
        "import re\nfrom pathlib import Path\n\n\ndef pytest_unconfigure():\n"
        "    status = Path('/proc/self/status').read_text()\n"
        "    print('MiB at most:', int(re.search(r'VmHWM:\\s+(\\d+) kB', status)[1]) >> 10)\n",
    )
    said = user.run(*wrong, *CHECKS, "-rA", "--nvfp4-remote-containers=4", *processes)
    failed = set(re.findall(r"^FAILED (\w+\.py)::verify\[(\w+)\]", said, re.MULTILINE))
    passed = set(re.findall(r"^PASSED (\w+\.py)::verify\[(\w+)\]", said, re.MULTILINE))
    expected = {(name, problem) for name, chosen in wrong.items() for problem in chosen}
    assert failed == expected, said[-3000:]
    assert len(passed) == 5 * problems - len(expected)
    assert f"{len(expected)} failed, {len(passed)} passed" in said
    done = executed_jobs(log)
    assert Counter((kernel, problem) for _, kernel, names in done for problem in names) == {
        (f"k{kernel}.py", f"p{number}"): 1 for kernel in range(5) for number in range(problems)
    }, "every case was done once, and none twice"
    assert len({process for process, *_ in done}) <= 4
    assert {one.definition.autoscaler_settings.max_containers for one in exact.service.functions.values()} == {4}
    assert exact.count("FunctionMap") == len(done)
    assert f"{len(done)} done; " in said
    assert exact.count("AppCreate") == exact.count("AppClientDisconnect") == 1
    most = max(map(int, re.findall(r"MiB at most: (\d+)", said)))
    assert most < 1024, "what has been judged is let go"


@pytest.mark.slow
def test_two_sessions_at_once_keep_apart(exact: Loopback, tmp_path: Path, log: Path, cache: Path) -> None:
    """Both ask the same of kernels of the same name; only one of them has the wrong kernel."""
    exact.forget()
    log.write_text("")
    users = [project(exact, tmp_path / name, problems=20, cache=cache) for name in ("one", "two")]
    users[0].write("kernel.py", KERNEL)
    users[1].write("kernel.py", f"WRONG = {{'p{3}', 'p{7}'}}\n{KERNEL}")
    said = ["", ""]

    def run(number: int) -> None:
        said[number] = users[number].run("kernel.py", *CHECKS, "--nvfp4-remote-containers=2")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "20 passed" in said[0], said[0]
    assert "2 failed, 18 passed" in said[1], said[1]
    assert exact.count("AppCreate") == exact.count("AppClientDisconnect") == 2


@pytest.fixture(scope="module")
def small(log: Path) -> Iterator[Loopback]:
    """Twenty jobs are asked for at once, and two containers are all there is."""
    with Loopback(backend="exact:run", environ={"NVFP4_EXACT_LOG": str(log)}, capacity=2) as server:
        yield server


def twenty(server: Loopback, folder: Path, log: Path, cache: Path, text: str = "") -> User:
    """One kernel on twenty problems, which are a job each."""
    server.forget()
    log.write_text("")
    user = project(server, folder, problems=20, cache=cache)
    settings = (folder / "pyproject.toml").read_text()
    user.write("pyproject.toml", re.sub(r"m = \[\d\]", "m = [4]", settings))
    user.write("kernel.py", f"{text}{KERNEL}")
    return user


@pytest.mark.slow
def test_a_container_dies_in_job_seven_of_twenty(small: Loopback, tmp_path: Path, log: Path, cache: Path) -> None:
    """The job is sent once more, and all twenty come to their end."""
    user = twenty(small, tmp_path, log, cache, "DIES_AT = 7\n")
    said = user.run("kernel.py", *CHECKS, "--nvfp4-remote-containers=20")
    assert "20 passed" in said, said
    assert "20 done" in said
    assert len(small.service.dead) >= 1
    counts = Counter(problem for *_, names in executed_jobs(log) for problem in names)
    assert sorted(counts.values()) == [1] * 19 + [2], "the one that was lost was done twice, and no other"


@pytest.mark.slow
@pytest.mark.parametrize(("gone", "takes"), [("answering", 1.5), ("connected", 0.0)])
def test_what_came_before_the_server_went_is_not_paid_for_again(
    small: Loopback, tmp_path: Path, log: Path, gone: str, takes: float
) -> None:
    """After eight results the server answers no more, or the network is gone; later it is back.

    Jobs that take longer have not all ended when the app ends: what has ended is fetched, and the others are sent anew.
    """
    user = twenty(small, tmp_path, log, tmp_path / "cache", f"TAKES_S = {takes}\n")
    user.write(
        "conftest.py",
        "from pytest_nvfp4.device.remote.modal import timeouts as p\n"
        "p.QUIET_S, p.SIGN_S, p.SILENT_S, p.OUTAGE_S, p.STATUS_S, p.STOP_S, p.ATTACHED_S = 2, 2, 4, 4, 2, 2, 1\n",
    )
    results = 0

    def eight(answer: Any) -> Any:
        nonlocal results
        results += len(answer.outputs)
        if results == 9:
            setattr(small, gone, False)
        return answer

    small.faults.add(Fault("FunctionGetOutputs", "answer", change=eight))
    first = user.run("kernel.py", *CHECKS, "--nvfp4-remote-containers=20", "--nvfp4-remote-timeout=100")
    found = re.search(r"(\d+) failed, (\d+) passed.* in ([\d.]+)s", first)
    assert found, first
    lost, kept = int(found[1]), int(found[2])
    assert (lost + kept, kept >= 8) == (20, True), first
    assert "not run on modal" in first
    assert float(found[3]) < LONGEST_S, "in bounded time"
    small.end_apps()
    small.forget()
    done = len(executed_jobs(log))
    again = user.run("kernel.py", *CHECKS, "--nvfp4-resume", "--nvfp4-remote-containers=20")
    assert "20 passed" in again, again
    # What went on meanwhile has ended on the server, and is fetched by the ids of its calls.
    stored = re.search(r"(\d+) from earlier sessions", again)
    assert stored, again
    had = int(stored[1])
    assert had >= kept
    assert small.count("FunctionMap") == 20 - had
    assert len(executed_jobs(log)) == done + 20 - had


@pytest.mark.slow
def test_eight_simulators_work_at_once_and_one_of_them_dies(
    exact: Loopback, tmp_path: Path, log: Path, cache: Path
) -> None:
    """No job ends before eight containers have one, and the job of the container that dies is done once more."""
    exact.forget()
    log.write_text("")
    user = project(exact, tmp_path / "user", problems=24, cache=cache)
    user.write("k.py", f"MEETS = 8\n{KERNEL}")
    user.write("other.py", f"WRONG = {{'p3'}}\nDIES_ON = 'p23'\n{KERNEL}")
    said = user.run("k.py", "other.py", *CHECKS, "-rA", "--nvfp4-device=sim", "--nvfp4-remote-containers=8")
    assert "1 failed, 47 passed" in said, said
    assert "FAILED other.py::verify[p3]" in said
    done = executed_jobs(log)
    assert len({container for container, *_ in done}) >= 8
    counts = Counter((kernel, problem) for _, kernel, names in done for problem in names)
    assert len(counts) == 48
    assert set(counts.values()) == {1, 2}
