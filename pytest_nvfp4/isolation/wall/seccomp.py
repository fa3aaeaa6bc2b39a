"""seccomp: which system calls a process may make (seccomp(2)), as a BPF program that is assembled here.

The program sees the number of a call, the architecture and the arguments, but not the memory to which arguments point.
It allows what it does not name. ``clone3`` and ``io_uring`` keep what decides in memory, so they do not exist here
(ENOSYS): the C library falls back to ``clone``, whose flags are seen.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pytest_nvfp4.isolation.wall import libc, syscalls
from pytest_nvfp4.isolation.wall.libc import Machine

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_FROM, _JUMP_BITS, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
"""BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_{JEQ,JGT,JGE,JSET}|BPF_K, BPF_ALU|BPF_AND|BPF_K and BPF_RET|BPF_K."""
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_ARCHITECTURE: Final[dict[Machine, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64; 32-bit calls of the same processor carry another word."""
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
"""Offsets in ``struct seccomp_data``."""

_SET_MODE_FILTER: Final = 1
_FLAG_TSYNC, _FLAG_SPEC_ALLOW = 1, 4

_NAMESPACES: Final = 0x7E020080
"""CLONE_NEW{TIME,NS,CGROUP,UTS,IPC,USER,PID,NET}; in ``clone`` the lowest byte is a signal instead of a flag."""
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE = 1, 5, 0xF

_REFUSED: Final = """
    ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd move_pages migrate_pages
    mount umount2 pivot_root chroot setns open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
    mount_setattr name_to_handle_at open_by_handle_at fanotify_init fanotify_mark lookup_dcookie
    add_key request_key keyctl bpf perf_event_open userfaultfd
    swapon swapoff reboot sethostname setdomainname acct quotactl quotactl_fd nfsservctl syslog vhangup uselib _sysctl
    iopl ioperm modify_ldt kexec_load kexec_file_load create_module init_module finit_module delete_module query_module
    settimeofday clock_settime clock_adjtime adjtimex
""".split()  # noqa: SIM905 - a list of words
_UNKNOWN: Final = ["clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"]
_SHARED_IPC: Final = """
    shmget shmat shmctl semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open
""".split()  # noqa: SIM905 - a list of words
_OF_PROCESSES: Final = """
    kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open prlimit64 sched_setaffinity sched_setparam
    sched_setscheduler sched_setattr
""".split()  # noqa: SIM905 - a list of words
"""Calls whose first argument is a process."""


@dataclass(frozen=True, slots=True)
class _Test:
    """A test of one argument: ``equal`` or ``other`` than any of the values, or with any of their ``bits``.

    Arguments of these calls are 32-bit integers, so their lower half decides. ``mask`` is applied first.
    """

    argument: int
    how: Literal["equal", "other", "bits"]
    values: tuple[int, ...]
    mask: int | None = None

    def code(self) -> list[bytes]:
        """Return instructions that fall through if the call is refused, and else skip the one that follows them."""
        out = [_instruction(_LOAD, _ARGUMENTS_AT + 8 * self.argument)]
        if self.mask is not None:
            out.append(_instruction(_AND, self.mask))
        jump = _JUMP_BITS if self.how == "bits" else _JUMP_EQUAL
        for index, value in enumerate(self.values):
            left = len(self.values) - 1 - index
            if self.how == "other":
                out.append(_instruction(jump, value, true=left + 1, false=0))
            else:
                out.append(_instruction(jump, value, true=left, false=0 if left else 1))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """What differs between processes.

    Attributes:
        sockets: Address families of sockets that may be made; pairs of connected local ones always may.
        private_ipc: Whether the process has an IPC namespace of its own.
        protected: Processes that must not be signalled or changed, and their groups; empty in a PID namespace, where
            no process outside of it has a number.
    """

    sockets: tuple[int, ...] = ()
    private_ipc: bool = False
    protected: tuple[int, ...] = ()


LOCAL_SOCKETS: Final = (_AF_UNIX,)
PROFILER_SOCKETS: Final = (_AF_UNIX, _AF_INET)
NETWORK_SOCKETS: Final = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)


def _instruction(code: int, value: int, *, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, true, false, value & 0xFFFFFFFF)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


def _tests(rules: CallRules) -> Iterable[tuple[str, Sequence[_Test]]]:
    """Yield system calls and tests of their arguments; one that holds refuses the call."""
    signed = tuple(value for pid in rules.protected for value in (pid, -pid))
    tiocsti, tioclinux = 0x5412, 0x541C
    setown, setsig, setown_ex = 8, 10, 15
    process, group = 0, 1  # neither all processes of a user (PRIO_USER); ioprio_set counts from 1
    yield "clone", [_Test(0, "bits", (_NAMESPACES & ~0xFF,))]
    yield "unshare", [_Test(0, "bits", (_NAMESPACES,))]
    yield "socket", [_Test(0, "other", rules.sockets)]
    # A pair of datagram sockets could be connected to any socket that has a path.
    yield "socketpair", [_Test(1, "other", (_SOCK_STREAM, _SOCK_SEQPACKET), mask=_SOCK_TYPE)]
    yield "ioctl", [_Test(1, "equal", (tiocsti, tioclinux))]
    for name, first in (("setpriority", 0), ("ioprio_set", 1)):
        others = [_Test(1, "equal", rules.protected)] if rules.protected else []
        yield name, [_Test(0, "other", (process + first, group + first)), *others]
    if rules.protected:
        yield "fcntl", [_Test(1, "equal", (setown, setsig, setown_ex))]
        for name in _OF_PROCESSES:
            yield name, [_Test(0, "equal", (*signed, -1) if name == "kill" else signed)]


def program(machine: Machine, rules: CallRules) -> bytes:
    """Return the filter: an array of ``struct sock_filter``."""
    numbers = syscalls.NUMBERS[machine]
    code = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_JUMP_EQUAL, _ARCHITECTURE[machine], true=1),
        _refuse(errno.ENOSYS),
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_JUMP_ABOVE, syscalls.LAST, false=1),  # x32 calls (bit 30) among them
        _refuse(errno.ENOSYS),
    ]
    shared = _SHARED_IPC if not rules.private_ipc else []
    by_descriptor = ["pidfd_send_signal"] if rules.protected else []  # an open /proc/PID serves as one
    refused = dict.fromkeys((*_REFUSED, *shared, *by_descriptor), errno.EPERM)
    for name, number in (refused | dict.fromkeys(_UNKNOWN, errno.ENOSYS)).items():
        if name in numbers:
            code += [_instruction(_JUMP_EQUAL, numbers[name], false=1), _refuse(number)]
    for name, tests in _tests(rules):
        body = [instruction for test in tests for instruction in (*test.code(), _refuse(errno.EPERM))]
        body.append(_instruction(_RETURN, _ALLOW))
        if len(body) > 255:
            raise ValueError(f"the filter of {name} has {len(body)} instructions; a jump spans 255")
        code += [_instruction(_JUMP_EQUAL, numbers[name], false=len(body)), *body]
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def available() -> bool:
    """Return whether the running kernel has seccomp filters (SECCOMP_GET_ACTION_AVAIL, Linux 4.14)."""
    machine = libc.machine()
    if machine is None:
        return False
    action = ctypes.c_uint32(_ERRNO)
    try:
        libc.call(libc.NR_SECCOMP[machine], 2, 0, ctypes.byref(action), name="seccomp")
    except OSError:
        return False
    return True


def restrict(rules: CallRules) -> None:
    """Restrict all threads of this process and all that they start, for ever.

    Raises:
        OSError: The running kernel has no filters, or this process may gain privileges (``no_new_privs``).
    """
    machine = libc.machine()
    if machine is None:
        raise OSError(errno.ENOSYS, "no filter of system calls for this architecture")
    text = program(machine, rules)
    held = ctypes.create_string_buffer(text, len(text))
    header = struct.pack("=H6xQ", len(text) // 8, ctypes.addressof(held))
    pointer = ctypes.create_string_buffer(header, len(header))
    # Without SPEC_ALLOW, kernels before 5.16 disable speculative stores for the process, which slows it down.
    flags = _FLAG_TSYNC | _FLAG_SPEC_ALLOW
    libc.call(libc.NR_SECCOMP[machine], _SET_MODE_FILTER, flags, pointer, name="seccomp")
