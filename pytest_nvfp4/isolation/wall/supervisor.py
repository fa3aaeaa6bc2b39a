"""Processes between a worker behind a wall and whoever started it, and an end that leaves no process.

``fork_behind`` forks three times where PID namespaces are permitted: a *mirror*, which stays in the namespaces for
processes of its parent; *init*, process 1 of a new PID namespace; and the process that returns, behind the wall. When
init ends, the kernel kills every process of its namespace, however it forked, and init dies with the mirror. Where they
are not permitted, there is no init, and the mirror, a subreaper, adopts and kills what is left. The mirror ends as the
process behind the wall does and forwards signals to it, so that its number stands for that process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from typing import Final, NoReturn

from pytest_nvfp4.isolation import limits
from pytest_nvfp4.isolation.environment import taken
from pytest_nvfp4.isolation.prctl import become_subreaper, die_with_parent, set_death_signal, set_dumpable
from pytest_nvfp4.isolation.process_tree import kill_descendants
from pytest_nvfp4.isolation.wall import libc, namespaces, privileges, seccomp
from pytest_nvfp4.isolation.wall.description import WALL_VARIABLE, Part, Wall
from pytest_nvfp4.isolation.wall.enter import Surroundings, enter

_NOT_ENTERED: Final = 125
"""Exit status of a process that could not enter its wall."""
_STATUS_BYTES: Final = 4


def fork_behind(wall: Wall, *, keep: Collection[int] = ()) -> int:
    """Fork a process behind a wall: return 0 there, and here the number of a process that ends as it does.

    Signals to that number reach the process behind the wall. Everything that it started has ended when that number has,
    and ends with this process. The new process leads a session of its own; it has the standard streams and ``keep`` of
    this one's descriptors, and all its other ones are closed. This process must have one thread.

    A process that cannot enter its wall writes the reason to its standard error and exits with status 125.
    """
    _flush()
    parent = os.getpid()
    if pid := os.fork():
        return pid
    _go(wall, parent, keep)
    return 0


def move_behind(wall: Wall, *, keep: Collection[int] = (), first: Callable[[], None] | None = None) -> dict[Part, str]:
    """Continue behind a wall in a new process, while this one waits and ends as that one does (``fork_behind``).

    The new process calls ``first`` before the wall binds it. This process ends with the one that the variable
    ``limits.PARENT_VARIABLE`` names, or with its parent.

    Returns:
        The reason for each part that is missing, in the new process.
    """
    _flush()
    return _go(wall, int(os.environ.get(limits.PARENT_VARIABLE) or os.getppid()), keep, first)


def enter_from_environment(keep: Collection[int] = (), first: Callable[[], None] | None = None) -> dict[Part, str]:
    """Continue behind the wall that the environment describes; see ``move_behind``.

    Raises:
        SystemExit: It describes none; whoever starts a worker gives it one.
    """
    return move_behind(Wall.from_json(taken(WALL_VARIABLE)), keep=keep, first=first)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _go(wall: Wall, parent: int, keep: Collection[int], first: Callable[[], None] | None = None) -> dict[Part, str]:
    try:
        around = _separate(wall, parent, {0, 1, 2, *keep})
        if first is not None:
            first()
        return enter(wall, around)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(_NOT_ENTERED)


def _separate(wall: Wall, parent: int, keep: set[int]) -> Surroundings:
    """Become a mirror, and init, and return in their innermost child only."""
    gc.disable()  # in the processes that only wait: a collection would copy the pages shared with others
    missing = namespaces.leave(wall.parts)
    inside = Part.PROCESSES in wall.parts and Part.PROCESSES not in missing
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    read, write = os.pipe()
    mirror = os.getpid()
    become_subreaper()  # before there is a child that can leave one behind; it is not inherited
    if pid := os.fork():
        os.close(write)
        _mirror(pid, parent, read)
    os.close(read)
    own_proc = False
    if inside:
        set_death_signal(signal.SIGKILL)
        # The mirror lies outside of this namespace, so its number does not show whether it still lives; its pipe does.
        if _hung_up(write):
            os._exit(1)
        if Part.MOUNTS in wall.parts and Part.MOUNTS not in missing:
            own_proc = namespaces.mount_own(processes=wall.processes, writable=(wall.folder, *wall.writable))
            if not own_proc:
                missing[Part.MOUNTS] = "/proc cannot be mounted anew; a container hides parts of it"
        if pid := os.fork():
            _init(pid, write)
    else:
        die_with_parent(mirror)
    os.setsid()
    _close_all_but(keep)
    gc.enable()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Surroundings(missing, own_proc)


def _hung_up(write: int) -> bool:
    poll = select.poll()
    poll.register(write, 0)
    return bool(poll.poll(0))


def _mirror(child: int, parent: int, read: int | None) -> NoReturn:
    """Forward signals to a child, and end as it does, or with the parent; ``read`` is where init writes the status."""
    orphaned = signal.SIGRTMIN + 5
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    set_dumpable(False)
    set_death_signal(orphaned)
    limits.forbid_core_files()
    _close_all_but({read} if read is not None else set())
    if os.getppid() != parent:
        _end_of_orphan()
    while True:
        number = signal.sigwaitinfo(signal.valid_signals()).si_signo
        if number == orphaned:
            _end_of_orphan()
        elif number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        elif (status := _reaped(child)) is not None:
            told = os.read(read, _STATUS_BYTES) if read is not None else b""
            kill_descendants(os.getpid())
            _end_as(int.from_bytes(told, "little") if told else status)


def _init(child: int, write: int) -> NoReturn:
    """Be process 1 of a PID namespace: reap orphans, forward signals, and end with a child after telling its status.

    It runs none of the kernel's code. The filter of system calls binds it too, in case it is taken over from within.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    set_dumpable(False)
    _close_all_but({write})
    with contextlib.suppress(OSError):
        privileges.drop()
        libc.forbid_new_privileges()
        seccomp.restrict(seccomp.CallRules(private_ipc=True))
    while True:
        number = signal.sigwaitinfo(signal.valid_signals()).si_signo
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        elif (status := _reaped(child)) is not None:
            os.write(write, status.to_bytes(_STATUS_BYTES, "little"))
            os._exit(0)


def _reaped(child: int) -> int | None:
    """Reap all children that have ended, and return the status of one of them (as waitpid(2)) if it was among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                status = ended
    return status


def _end_of_orphan() -> NoReturn:
    kill_descendants(os.getpid())
    os._exit(1)


def _end_as(status: int) -> NoReturn:
    """End this process with a status of waitpid(2): a signal ends it, too."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    with contextlib.suppress(OSError, ValueError):
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _close_all_but(keep: set[int]) -> None:
    first = 0
    for descriptor in sorted(keep):
        if first < descriptor:  # os.closerange(0, 0) closes all (CPython 3.11)
            os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, (1 << 31) - 1)
