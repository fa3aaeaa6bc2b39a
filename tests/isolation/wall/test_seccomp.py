"""The filter of system calls, for each processor, and on this one against the processes above a kernel."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.wall.libc import Machine
from pytest_nvfp4.isolation.wall.seccomp import LOCAL_SOCKETS, NETWORK_SOCKETS, CallRules, program
from pytest_nvfp4.isolation.wall.syscalls import LAST, NUMBERS
from tests.isolation.supervised import ROOT

from .bpf import ALLOWED, decide

HEADERS: dict[Machine, str] = {
    "x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
    "aarch64": "/usr/include/asm-generic/unistd.h",
}
WORDS: dict[Machine, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, ARM = 0x40000003, 0x40000028
REFUSED, UNKNOWN = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
NEW_USER, SIGCHLD, THREAD = 0x10000000, 17, 0x003D0F00


@pytest.mark.parametrize("machine", HEADERS)
def test_the_numbers_are_those_of_the_kernel_s_headers(machine: Machine) -> None:
    header = Path(HEADERS[machine])
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    stated = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    compared = {name: int(stated[name]) for name in NUMBERS[machine] if name in stated}
    assert len(compared) > 60
    assert compared == {name: NUMBERS[machine][name] for name in compared}


CASES = [
    ("socket", (1,), CallRules(), REFUSED),
    ("socket", (2,), CallRules(), REFUSED),
    ("socket", (1,), CallRules(sockets=LOCAL_SOCKETS), ALLOWED),
    ("socket", (2,), CallRules(sockets=LOCAL_SOCKETS), REFUSED),
    ("socket", (2,), CallRules(sockets=NETWORK_SOCKETS), ALLOWED),
    ("socket", (38,), CallRules(sockets=NETWORK_SOCKETS), REFUSED),
    ("socketpair", (1, 1), CallRules(), ALLOWED),
    ("socketpair", (1, 1 | 0o2000000), CallRules(), ALLOWED),
    ("socketpair", (1, 2), CallRules(), REFUSED),
    ("clone", (SIGCHLD,), CallRules(), ALLOWED),
    ("clone", (THREAD,), CallRules(), ALLOWED),
    ("clone", (NEW_USER | SIGCHLD,), CallRules(), REFUSED),
    ("clone", (1 << 32 | NEW_USER,), CallRules(), REFUSED),
    ("unshare", (0x400,), CallRules(), ALLOWED),
    ("unshare", (0x80,), CallRules(), REFUSED),
    ("clone3", (), CallRules(), UNKNOWN),
    ("kill", (77, 9), CallRules(), ALLOWED),
    ("kill", (77, 9), CallRules(protected=(77, 78)), REFUSED),
    ("kill", (78, 9), CallRules(protected=(77, 78)), REFUSED),
    ("kill", (-78, 9), CallRules(protected=(77, 78)), REFUSED),
    ("kill", (-1, 9), CallRules(protected=(77, 78)), REFUSED),
    ("kill", (79, 9), CallRules(protected=(77, 78)), ALLOWED),
    ("tgkill", (78, 1, 9), CallRules(protected=(77, 78)), REFUSED),
    ("pidfd_send_signal", (3, 9), CallRules(protected=(77,)), REFUSED),
    ("pidfd_send_signal", (3, 9), CallRules(), ALLOWED),
    ("fcntl", (3, 8), CallRules(protected=(77,)), REFUSED),
    ("fcntl", (3, 4), CallRules(protected=(77,)), ALLOWED),
    ("setpriority", (0, 77), CallRules(protected=(77,)), REFUSED),
    ("setpriority", (0, 0), CallRules(protected=(77,)), ALLOWED),
    ("setpriority", (2, 0), CallRules(), REFUSED),
    ("ioprio_set", (3, 0), CallRules(), REFUSED),
    ("ioprio_set", (1, 0), CallRules(), ALLOWED),
    ("shmget", (1,), CallRules(), REFUSED),
    ("shmget", (1,), CallRules(private_ipc=True), ALLOWED),
    ("ioctl", (0, 0x5412), CallRules(), REFUSED),
    ("ioctl", (0, 0x5401), CallRules(), ALLOWED),
    ("ptrace", (), CallRules(), REFUSED),
]


@pytest.mark.parametrize("machine", WORDS)
def test_the_filter_decides_by_arguments(machine: Machine) -> None:
    wrong = []
    for name, arguments, rules, answer in CASES:
        given = [argument & (1 << 64) - 1 for argument in arguments]
        found = decide(program(machine, rules), NUMBERS[machine][name], WORDS[machine], *given)
        if found != answer:
            wrong.append((name, arguments, hex(found)))
    assert not wrong


@pytest.mark.parametrize("machine", WORDS)
def test_only_known_calls_of_this_architecture_are_made(machine: Machine) -> None:
    code, word = program(machine, CallRules()), WORDS[machine]
    assert decide(code, LAST, word) == ALLOWED
    assert [decide(code, number, word) for number in (LAST + 1, 0x40000000, 0xFFFFFFFF)] == [UNKNOWN] * 3
    assert [decide(code, 0, other) for other in (I386, ARM, 0)] == [UNKNOWN] * 3


AGAINST_THE_PARENT = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import os, resource, signal, tempfile
from pytest_nvfp4.isolation.wall import Part, Wall, fork_behind
above = [os.getppid(), os.getpid()]
wall = Wall(folder=tempfile.mkdtemp(dir=sys.argv[1]), without=tuple(set(Part) - {{Part.SECCOMP}}))
pid = fork_behind(wall)
if pid == 0:
    done = []
    for victim in [*above, os.getppid()]:
        for name, attack in {{
            "kill": lambda: os.kill(victim, 0),
            "killpg": lambda: os.killpg(victim, 0),
            "limit": lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE),
            "cores": lambda: os.sched_setaffinity(victim, os.sched_getaffinity(0)),
            "priority": lambda: os.setpriority(os.PRIO_PROCESS, victim, os.getpriority(os.PRIO_PROCESS, victim)),
            "descriptor": lambda: os.pidfd_open(victim),
        }}.items():
            try:
                attack()
            except PermissionError:
                continue
            done.append(name)
    print(done, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no wall elsewhere")
def test_without_namespaces_the_filter_protects_the_processes_above(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AGAINST_THE_PARENT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
