"""A forked worker equals a plain process, ends like one, and leaves as little behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import Outcome, StoppedError, Worker, stopped_by
from pytest_nvfp4.isolation.fork_server import process
from pytest_nvfp4.isolation.fork_server.pool import FORK_SERVERS, SWITCH_VARIABLE
from pytest_nvfp4.isolation.launcher import worker
from pytest_nvfp4.toolchain.preload import PRELOAD as COMPILING
from tests.waiting import LONGEST_S, alive, far_enough, gone, noted, until

from .conftest import PARENT, PRELOAD, Workers, is_plain
from .forked_workers import in_a_thread, launcher_with, stdout_of
from .supervised import supervised

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there are no fork servers elsewhere")

WHAT_IT_IS = """
import gc, json, os, resource, signal, sys, threading
from pathlib import Path
if __name__ == "__main__":
    result = int(os.environ.pop("NVFP4_RESULT_FD"))
    where = {int(one.name): os.readlink(one).split(":")[0] for one in Path("/proc/self/fd").iterdir() if one.exists()}
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    streams = (sys.stdin, sys.stdout, sys.stderr)
    parent = int(os.environ.pop("NVFP4_PARENT_PID"))
    state = {
        "arguments": sys.argv,
        "originally": sys.orig_argv,
        "path": sys.path,
        "environ": {name: value for name, value in os.environ.items() if name != "NVFP4_DEADLINE"},
        "cwd": os.getcwd(),
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "flags": str(sys.flags),
        "streams": [(one.name, one.encoding, one.errors, one.line_buffering, one.write_through, one.seekable())
                    for one in streams],
        "stdin": sys.stdin.read(),
        "descriptors": sorted(kind for number, kind in where.items() if number != result),
        "result": [where[result], os.get_inheritable(result)],
        "collects": gc.isenabled(),
        "signals": {number.name: str(signal.getsignal(number)) for number in signal.Signals},
        "masks": [status[name].split() for name in ("Umask", "SigBlk", "SigIgn", "SigCgt")],
        "limits": [resource.getrlimit(kind) for kind in range(16)],
        "main": [sys.modules["__main__"].__file__, __name__, globals().get("__file__")],
        "threads": [len(list(Path("/proc/self/task").iterdir())), threading.current_thread().name],
        "bound": parent == os.getppid(),
        "faults": __import__("faulthandler").is_enabled(),
        "executable": os.readlink("/proc/self/exe"),
    }
    print("out")
    print("err", file=sys.stderr)
    os.write(result, json.dumps({**state, "ready": "colorsys" in sys.modules}).encode())
"""


@pytest.mark.parametrize("path", ["deeper:nowhere", ":".join(filter(os.path.exists, sys.path))], ids=["some", "all"])
@pytest.mark.parametrize(
    "environ", [{}, {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "NVFP4_OWN": "a=b\udcff"}]
)
def test_it_equals_a_plain_process(workers: Workers, environ: dict[str, str], path: str) -> None:
    (workers.folder / "deeper").mkdir()
    environ = {**environ, "PYTHONPATH": f"{workers.folder}:{path}"}
    leaking = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(leaking, True)
    try:
        told = []
        for forked in (False, True):
            outcome = workers.run(WHAT_IT_IS, "a", "b c", forked=forked, environ=environ)
            assert (outcome.returncode, outcome.stdout.text, outcome.stderr.text) == (0, "out\n", "err\n")
            told.append(json.loads(outcome.result or b""))
    finally:
        os.close(leaking)
    assert [one.pop("ready") for one in told] == [False, True]
    assert told[0] == told[1]
    assert told[0]["bound"]
    assert told[0]["descriptors"] == ["/dev/null", "pipe", "pipe"]


ENDS = {
    "status": ("import sys; sys.exit(3)", 3),
    "words": ("import sys; sys.exit('words')", 1),
    "raises": ("raise ValueError('raised')", 1),
    "at once": ("import os; os._exit(7)", 7),
    "falls off its end": ("import atexit; atexit.register(print, 'at its exit')", 0),
    "crash": ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "interrupted": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
}


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_like_a_plain_process(workers: Workers, how: str) -> None:
    source, returncode = ENDS[how]
    ended = [workers.run(PARENT + source, forked=forked) for forked in (False, True)]
    assert [one.returncode for one in ended] == [returncode, returncode]
    assert [is_plain(one) for one in ended] == [True, False]
    (alone, told), (_, as_told) = ([one.stdout.text.split()[1:], one.stderr.text.splitlines()[-1:]] for one in ended)
    assert (alone, told) == (ended[1].stdout.text.split()[1:], as_told)


CHILDREN = """
import os, subprocess, sys, time
wait = "import time; time.sleep(600)"
def forked(leaves):
    pid = os.fork()
    if pid == 0:
        if leaves:
            os.setsid()
        time.sleep(600)
    return pid
pids = [
    forked(False), forked(True),
    subprocess.Popen([sys.executable, "-c", wait]).pid,
    subprocess.Popen([sys.executable, "-c", wait], start_new_session=True).pid,
    os.posix_spawn(sys.executable, [sys.executable, "-c", wait], os.environ, setsid=True),
]
print(*pids, flush=True)
"""


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "plain"])
@pytest.mark.parametrize("hangs", [True, False], ids=["deadline", "end"])
def test_its_children_go_with_it(workers: Workers, forked: bool, hangs: bool) -> None:
    source = supervised() + CHILDREN + ("time.sleep(600)" if hangs else "os._exit(0)")
    outcome = (
        far_enough(lambda deadline_s: workers.run(source, forked=forked, deadline_s=deadline_s), stdout_of)
        if hangs
        else workers.run(source, forked=forked)
    )
    pids = list(map(int, outcome.stdout.text.split()))
    assert len(pids) == 5
    assert all(map(gone, pids))
    assert outcome.timed_out == hangs
    assert outcome.wall_s < 600


LIMITED = """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for what, act in (("memory", lambda: bytearray(300 << 20)), ("file", lambda: open("big", "wb").write(bytes(3 << 20)))):
    try:
        act()
    except (MemoryError, OSError):
        print(what, "bounded")
"""


def test_limits_bind_it(workers: Workers) -> None:
    outcome = workers.run(supervised(memory_bytes=200 << 20, file_bytes=1 << 20) + LIMITED)
    assert outcome.stdout.text.splitlines() == ["memory bounded", "file bounded"], outcome
    assert workers.run(supervised() + LIMITED).stdout.text == ""


def test_what_one_finds_at_random_no_other_does(workers: Workers) -> None:
    source = "import os, random\nprint(random.random(), os.urandom(8).hex())\nimport multiprocessing.process as one\n"
    source += "print(one.current_process().authkey.hex())"
    printed = [workers.run(source, preload=("random", "multiprocessing.process")).stdout.text.split() for _ in range(2)]
    assert all(one != other for one, other in zip(*printed, strict=True))


def test_jobs_at_once_have_their_own(workers: Workers) -> None:
    """Each has its own arguments, output and result; none has a descriptor of another's."""
    module = """
    import os, sys, time
    from pathlib import Path
    here = Path(sys.argv[1])
    (here / f"met-{sys.argv[2]}").touch()
    while len(list(here.glob("met-*"))) < 4:
        time.sleep(0.01)
    kept = [one for one in Path("/proc/self/fd").iterdir() if one.exists()]
    print(sys.argv[2], len(kept))
    os.write(int(os.environ["NVFP4_RESULT_FD"]), sys.argv[2].encode())
    """
    workers.run(PARENT)
    workers.module(module)
    printed: dict[str, tuple[str, bytes | None]] = {}

    def work(name: str) -> None:
        one = worker("the_worker", workers.folder, name, preload=PRELOAD)
        outcome = workers.run_module(one)
        printed[name] = (outcome.stdout.text, outcome.result)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONGEST_S)
    assert len(FORK_SERVERS.pids) == 1
    assert printed == {name: (f"{name} 4\n", name.encode()) for name in "abcd"}


def test_a_folder_that_is_not_there_is_an_error(workers: Workers) -> None:
    for forked in (True, False):
        with pytest.raises(FileNotFoundError):
            workers.run(PARENT, forked=forked, cwd=workers.folder / "nowhere")
    assert not is_plain(workers.run(PARENT))


# ---- which jobs are forked ------------------------------------------------------------------------------------


def test_variables_that_may_be_read_early_need_another_server(workers: Workers) -> None:
    printed = [
        workers.run(PARENT + f"print(os.environ.get({name!r}))", environ={} if value is None else {name: value})
        for name, value in (
            ("OMP_NUM_THREADS", None),
            ("OMP_NUM_THREADS", "1"),
            ("CUTE_DSL_ARCH", "sm_90a"),
            ("NVFP4_COMPILED", "folder"),
            ("LC_ALL", "C.UTF-8"),
            ("PYTHONHASHSEED", "7"),
        )
    ]
    by, values = zip(*(one.stdout.text.split() for one in printed), strict=True)
    assert values == ("None", "1", "sm_90a", "folder", "C.UTF-8", "7")
    assert by[0] == by[2] == by[3]
    assert len({by[0], by[1], by[4]}) == 3
    assert is_plain(printed[5])  # that is enough of them
    assert sorted(map(int, {by[0], by[1], by[4]})) == sorted(FORK_SERVERS.pids)


def test_what_needs_no_torch_is_not_forked_from_a_server_with_it(workers: Workers) -> None:
    loaded = PARENT + "import sys\nprint('torch' in sys.modules)\n"
    printed = [
        workers.run(loaded, preload=preload).stdout.text.split()
        for preload in (PRELOAD, (*PRELOAD, "torch"), PRELOAD, ("torch",))
    ]
    by, large = zip(*printed, strict=True)
    assert large == ("False", "True", "False", "True")
    assert by[0] == by[2] != by[1] == by[3]
    assert sorted(map(int, by[:2])) == sorted(FORK_SERVERS.pids)


def test_a_worker_has_no_modules_of_the_package_that_were_preloaded_for_others(workers: Workers) -> None:
    loaded = PARENT + (
        "import sys\nname = 'pytest_nvfp4.layout.grammar'\nprint(name in sys.modules, 'colorsys' in sys.modules)\n"
        "import pytest_nvfp4.layout.grammar as again\nprint(again.__name__ == name)\n"
    )
    both, first = (*PRELOAD, "pytest_nvfp4.layout.grammar"), (*PRELOAD, "colorsys")
    printed = [workers.run(loaded, preload=preload).stdout.text.split() for preload in (first, both, first, both)]
    assert len({by for by, *_ in printed}) == 1
    assert [found for _, found, *_ in printed] == ["False", "True", "False", "True"]
    assert all(others == ["True", "True"] for _, _, *others in printed)


def test_an_idle_server_makes_room_for_a_key_that_is_requested_again(workers: Workers) -> None:
    def server(threads: int) -> int:
        return int(workers.run(PARENT, environ={"OMP_NUM_THREADS": str(threads)}).stdout.text.split()[0])

    first, second, third = server(1), server(2), server(3)
    assert server(1) == first  # so that another is the one that was asked longest ago
    assert server(4) == os.getpid(), "asked for once"
    fourth = server(4)
    assert len({first, second, third, fourth, os.getpid()}) == 5
    assert sorted(FORK_SERVERS.pids) == sorted((first, third, fourth))
    assert gone(second)


def test_a_server_with_a_child_is_not_ended_for_another(workers: Workers) -> None:
    waits = PARENT + "import time\nfrom pathlib import Path\nwhile not Path('go').exists(): time.sleep(0.01)\n"
    module = workers.module(waits)
    ended = []

    def stay(threads: int) -> None:
        ended.append(workers.run_module(module, environ={"OMP_NUM_THREADS": str(threads)}))

    staying = [threading.Thread(target=stay, args=(threads,)) for threads in (1, 2, 3)]
    for one in staying:
        one.start()
    assert until(lambda: len(FORK_SERVERS.pids) == 3)
    (workers.folder / "again").mkdir()
    for _ in range(3):
        (workers.folder / "again" / "go").touch()
        outcome = workers.run_module(module, environ={"OMP_NUM_THREADS": "4"}, cwd=workers.folder / "again")
        assert is_plain(outcome)
    (workers.folder / "go").touch()
    for one in staying:
        one.join()
    assert [outcome.returncode for outcome in ended] == [0, 0, 0]
    assert workers.run_module(module, environ={"OMP_NUM_THREADS": "4"}).returncode == 0
    assert len(FORK_SERVERS.pids) == 3


def test_a_changed_mask_of_file_modes_is_that_of_the_job(workers: Workers) -> None:
    workers.run(PARENT)
    before = os.umask(0o027)
    try:
        outcome = workers.run("import os\nprint(oct(os.umask(0)))")
    finally:
        os.umask(before)
    assert outcome.stdout.text == "0o27\n"


@pytest.mark.parametrize(
    ("name", "own"),
    [("colorsys.py", True), ("colorsys/__init__.py", True), ("colorsys/other.py", False), ("colors.py", False)],
)
def test_a_module_that_hides_a_preloaded_one_is_found(workers: Workers, name: str, own: bool) -> None:
    path = workers.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    outcome = workers.run(PARENT + "import colorsys\nprint(colorsys.__file__)")
    assert is_plain(outcome) == own
    assert (str(workers.folder) in outcome.stdout.text) == own


def test_what_cannot_be_preloaded_is_said_by_the_job(workers: Workers) -> None:
    for _ in range(2):
        outcome = workers.run(PARENT + "import no_such_module", preload=("no_such_module",))
        assert is_plain(outcome)
        assert "No module named 'no_such_module'" in outcome.stderr.text


CHATTY = "import ctypes\nprint('python')\nctypes.CDLL(None).puts(b'c')\n"


def test_children_do_not_write_what_their_server_has_buffered(workers: Workers) -> None:
    launcher = launcher_with(workers, chatty=CHATTY)
    workers.module("import pytest_nvfp4.chatty\nprint('done')")
    module = Worker(launcher, "the_worker", (), ("pytest_nvfp4.chatty",))
    printed = [workers.run_module(module, forked=forked).stdout.text.split() for forked in (True, True, False)]
    assert printed == [["done"], ["done"], ["python", "done", "c"]]


STARTS_A_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"


def test_nothing_is_forked_beside_a_thread(workers: Workers) -> None:
    """Only modules of the package are preloaded here; one that starts a thread must not be among them."""
    launcher = launcher_with(workers, quiet="", threads=STARTS_A_THREAD)
    workers.module(PARENT)
    for name, forks in (("quiet", True), ("threads", False)):
        FORK_SERVERS.close()
        one = Worker(launcher, "the_worker", (), (f"pytest_nvfp4.{name}",))
        assert is_plain(workers.run_module(one)) is not forks


@pytest.mark.parametrize("why", ["nothing to preload", "another interpreter", "switched off", "no way to watch"])
def test_otherwise_a_plain_process_starts(workers: Workers, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    module = workers.module(PARENT)
    if why == "nothing to preload":
        module = workers.module(PARENT, preload=())
    elif why == "another interpreter":
        link = workers.folder / "python"
        link.symlink_to(sys.executable)
        module = Worker((str(link), *module.launcher[1:]), module.module, (), module.preload)
    elif why == "no way to watch":
        monkeypatch.delattr(os, "pidfd_open")
    assert is_plain(workers.run_module(module, forked=why != "switched off"))
    assert FORK_SERVERS.pids == []


def test_a_server_that_cannot_start_is_not_needed(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_MODULE", "pytest_nvfp4.no_such_module")
    assert [is_plain(workers.run(PARENT)) for _ in range(2)] == [True, True]
    assert FORK_SERVERS.pids == []


def test_a_process_that_was_forked_does_not_use_its_is_plain(workers: Workers) -> None:
    workers.run(PARENT)
    (mine,) = FORK_SERVERS.pids
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(write, workers.run(PARENT).stdout.text.encode())
            FORK_SERVERS.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as pipe:
        other = int(pipe.read())
    assert other not in (mine, pid)
    assert gone(other)
    assert alive(mine)
    assert not is_plain(workers.run(PARENT))


# ---- when something ends that should not -------------------------------------------------------------------------

HANGS = "import os, sys, time\nopen(sys.argv[1], 'w').write(f'{os.getpid()}\\n')\ntime.sleep(600)\n"


@pytest.mark.parametrize("unbound", [False, True], ids=["bound to it", "unbound"])
def test_a_job_whose_server_dies_has_ended(workers: Workers, unbound: bool) -> None:
    """Also one that no longer has the kernel end it with its parent."""
    note = workers.folder / "note"
    free = "import ctypes; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n" if unbound else ""
    ended = []
    thread = in_a_thread(lambda: ended.append(workers.run(free + HANGS, str(note))))
    pid = noted(note)
    (server,) = FORK_SERVERS.pids
    os.kill(server, signal.SIGKILL)
    thread.join(LONGEST_S)
    assert [one.returncode for one in ended] == [-signal.SIGKILL]
    assert "ended by SIGKILL" in ended[0].describe_end()
    assert gone(pid)
    assert is_plain(workers.run(PARENT))


def test_a_stopped_server_holds_nothing_up(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.run(PARENT)
    (server,) = FORK_SERVERS.pids
    monkeypatch.setattr(process, "_REPORT_S", 0.2)
    # It is named, so that it is not this process that is stopped, should something else have started the job.
    stops = "import os, signal, sys, time\nos.kill(int(sys.argv[1]), signal.SIGSTOP)\nprint(os.getpid(), flush=True)\n"

    def job(deadline_s: float) -> Outcome:
        os.kill(server, signal.SIGCONT)
        return workers.run(stops + "time.sleep(600)", str(server), deadline_s=deadline_s)

    outcome = far_enough(job, stdout_of)
    assert outcome.timed_out
    assert outcome.wall_s < 600
    assert gone(int(outcome.stdout.text))
    assert FORK_SERVERS.pids == [server]
    monkeypatch.setattr(process, "_START_S", 0.5)
    assert is_plain(workers.run(PARENT))
    assert gone(server)


IMPORTS = """
import os, time
from pathlib import Path
folder = Path({folder!r})
(folder / "imports").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
"""
OUTLASTS = """
import sys, time
from pathlib import Path
if sys.argv[1] == "first":
    Path("runs").touch()
    while not Path("imports").exists():
        time.sleep(0.01)
sys.exit(3)
"""


@pytest.mark.parametrize("report_s", [0.0, LONGEST_S], ids=["from the zombie", "from the report"])
def test_a_job_that_ends_while_its_server_imports_for_another_keeps_its_exit_status(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, report_s: float
) -> None:
    """The report of a busy server is late; the status comes from it, or from the zombie if it is too late."""
    monkeypatch.setattr(process, "_REPORT_S", report_s)
    launcher = launcher_with(workers, slow=IMPORTS.format(folder=str(workers.folder)))
    workers.module(OUTLASTS)
    ended: dict[str, Outcome] = {}

    def job(name: str, preload: str) -> None:
        ended[name] = workers.run_module(Worker(launcher, "the_worker", (name,), (preload,)))

    first = in_a_thread(lambda: job("first", "colorsys"))
    assert until((workers.folder / "runs").exists)
    second = in_a_thread(lambda: job("second", "pytest_nvfp4.slow"))
    assert until((workers.folder / "imports").exists)
    if not report_s:
        assert until(lambda: "first" in ended), "the server need not report"
    (workers.folder / "go").touch()
    for thread in (first, second):
        thread.join(LONGEST_S)
    assert [ended[name].returncode for name in ("first", "second")] == [3, 3]


def test_a_thread_that_waits_for_a_server_is_stopped(workers: Workers) -> None:
    launcher = launcher_with(workers, slow="import time\ntime.sleep(600)\n")
    workers.module(PARENT)
    module = Worker(launcher, "the_worker", (), ("pytest_nvfp4.slow",))
    stop, raised = threading.Event(), []

    def work() -> None:
        with stopped_by(stop):
            try:
                workers.run_module(module)
            except StoppedError as error:
                raised.append(error)

    thread = in_a_thread(work)
    assert until(lambda: FORK_SERVERS.pids)
    stop.set()
    thread.join(LONGEST_S)
    assert len(raised) == 1


RUNS = """
import os, sys, threading, time
from pathlib import Path
from pytest_nvfp4.isolation import Worker, run
from pytest_nvfp4.isolation.fork_server.pool import FORK_SERVERS
folder, when, *launcher = Path(sys.argv[1]), sys.argv[2], *sys.argv[3:]
environ = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
def note():
    while not FORK_SERVERS.pids:
        time.sleep(0.01)
    (folder / "server").write_text(f"{FORK_SERVERS.pids[0]}\\n")
threading.Thread(target=note, daemon=True).start()
def work(module, *preload):
    run(Worker(tuple(launcher), module, (str(folder / "note"),), preload), cwd=folder, deadline_s=600, environ=environ)
if when == "has forked":
    work("colorsys", "colorsys")
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
work("the_worker", "pytest_nvfp4.slow" if when == "the server imports" else "colorsys")
"""
SLOW = "import time\nfrom pathlib import Path\nPath({note!r}).write_text('0\\n')\ntime.sleep(600)\n"


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("it runs", signal.SIGKILL),
        ("it runs", signal.SIGINT),
        ("has forked", signal.SIGKILL),
        ("the server imports", signal.SIGKILL),
        ("the server imports", signal.SIGINT),
    ],
)
def test_nothing_survives_the_parent(workers: Workers, when: str, number: signal.Signals) -> None:
    """Ctrl-C goes to the whole group of the terminal. What the parent forked has all its descriptors and lives on."""
    launcher = launcher_with(workers, slow=SLOW.format(note=str(workers.folder / "note")))
    workers.module(HANGS)
    (workers.folder / "runs.py").write_text(RUNS)
    root = str(Path(worker("x").launcher[-1]).parent)
    command = [sys.executable, str(workers.folder / "runs.py"), str(workers.folder), when, *launcher]
    environ = {**os.environ, "PYTHONPATH": root, SWITCH_VARIABLE: "1"}
    parent = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        server, pid = noted(workers.folder / "server"), noted(workers.folder / "note")
        assert alive(server)
        assert not pid or alive(pid)
        (os.kill if when == "has forked" else os.killpg)(parent.pid, number)
        parent.wait(timeout=LONGEST_S)
        assert gone(server)
        assert not pid or gone(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


# ---- with what workers import ------------------------------------------------------------------------------------

LOADED = """
import os, sys
from pathlib import Path
import torch, numpy
print(os.getppid(), torch.initial_seed(), numpy.random.rand(), numpy.random.default_rng().random())
print("cutlass" in sys.modules, torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork(), torch.cuda.is_available(),
      torch.get_num_threads())
print(len(list(Path("/proc/self/task").iterdir())))
product = torch.ones(300, 300) @ torch.ones(300, 300)
print(float(product.sum()), float((numpy.ones((300, 300)) @ numpy.ones((300, 300))).sum()), flush=True)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "2"])
def test_what_workers_import_can_be_forked(workers: Workers, threads: str) -> None:
    """No thread, no CUDA, none of the DSL; matrices are multiplied, and nobody draws the numbers of another."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environ = {"CUDA_VISIBLE_DEVICES": "", **dict.fromkeys(names, threads)}
    alone, *forks = (
        workers.run(LOADED, preload=COMPILING, forked=index > 0, environ=environ).stdout.text.splitlines()
        for index in range(3)
    )
    assert alone[1:2] + alone[3:] == forks[0][1:2] + forks[0][3:] == forks[1][1:2] + forks[1][3:]
    assert [one[2] for one in (alone, *forks)] == [threads, "1", "1"]  # OpenBLAS starts its own where they are needed
    assert forks[0][1].split()[:5] == ["False", "False", "False", "False", threads]
    drawn = [one[0].split() for one in (alone, *forks)]
    assert drawn[1][0] == drawn[2][0] != drawn[0][0]
    assert all(len(set(column)) == 3 for column in list(zip(*drawn, strict=True))[1:])


# ---- shared servers -------------------------------------------------------------------------------------------


def test_processes_share_a_server_that_ends_with_its_owner(workers: Workers, tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert owner.stdin is not None
    try:
        folder = tmp_path / "servers"
        folder.mkdir(mode=0o700)
        (workers.folder / "the_worker.py").write_text(PARENT)
        asks = (
            "from pathlib import Path; from pytest_nvfp4.isolation.run import run;"
            "from pytest_nvfp4.isolation.launcher import worker;"
            "done = run(worker('the_worker', preload=('colorsys',)), cwd=Path.cwd(), deadline_s=600,"
            " environ={'PYTHONPATH': str(Path.cwd())}); print(done.stdout.text or done)"
        )
        environ = {**os.environ, SWITCH_VARIABLE: f"{folder}:{owner.pid}", "PYTHONPATH": str(Path(__file__).parents[2])}

        def server() -> int:
            command = [sys.executable, "-c", asks]
            return int(subprocess.check_output(command, cwd=workers.folder, env=environ, text=True))

        first = server()
        assert server() == first, "the process that started it has ended"
        assert len(list(folder.glob("*.lock"))) == 1
        owner.stdin.close()
        owner.wait(LONGEST_S)
        assert gone(first)
    finally:
        owner.kill()
        owner.wait()
