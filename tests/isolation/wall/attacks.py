"""Programs that a hostile kernel could run, each with what refuses it, and honest ones that must work."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.isolation.wall import Part

PREAMBLE = """
import ctypes, errno, os, resource, signal, socket, struct, subprocess, sys, tempfile, threading, time
from pathlib import Path
libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
secret, outside, parent = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3].isdigit() else 0
def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def syscall(number, *arguments):
    return call(libc.syscall, ctypes.c_long(number), *[ctypes.c_long(one) for one in arguments])
"""
"""Argument 1 is a file of the user that is no kernel's, 2 a folder of the user, 3 a process of the user."""

REPORT = """
sys.stdout.flush()
for name, attack in attacks.items():
    if (pid := os.fork()) == 0:
        try:
            attack()
        except (OSError, MemoryError, subprocess.SubprocessError) as error:
            os._exit(3)
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), sep="|", flush=True)
os._exit(0)
"""
REFUSED = 3
"""Status of an attack that was refused."""


@dataclass(frozen=True, slots=True)
class Attack:
    """A program.

    Attributes:
        source: Body of ``attack()``, which raises if it is refused.
        parts: The parts of a wall each of which refuses it, by itself.
    """

    source: str
    parts: tuple[Part, ...]


L, S, P, N, Q, M, C = (
    Part.LANDLOCK,
    Part.SECCOMP,
    Part.PROCESSES,
    Part.NETWORK,
    Part.IPC,
    Part.MOUNTS,
    Part.PRIVILEGES,
)

ATTACKS = {
    "reads a file of the user": Attack("return secret.read_text()", (L,)),
    "lists a folder of the user": Attack("return os.listdir(outside)", (L,)),
    "reads it through a link": Attack(
        "os.symlink(secret, 'link'); return open('link').read()",
        (L,),
    ),
    "reads it through a hard link": Attack("os.link(secret, 'hard'); return open('hard').read()", (L,)),
    "reads it through the root of a process": Attack("return open(f'/proc/self/root{secret}').read()", (L,)),
    "reads it by a program": Attack(
        "return subprocess.run(['cat', str(secret)], check=True, capture_output=True).stdout", (L,)
    ),
    "reads the password file": Attack("return open('/etc/shadow').read()", (L,)),
    "writes outside": Attack("return (outside / 'written').write_text('x')", (L, M)),
    "truncates": Attack("os.truncate(secret, 0)", (L, M)),
    "removes": Attack("os.unlink(secret)", (L, M)),
    "changes a mode": Attack("os.chmod(secret, 0o777)", (M,)),
    "changes a time": Attack("os.utime(secret, (1, 1))", (M,)),
    "sets an attribute": Attack("os.setxattr(secret, 'user.x', b'')", (M,)),
    "renames": Attack("os.rename(secret, 'mine')", (L,)),
    "writes a setting of the system": Attack("open('/proc/sys/kernel/core_pattern', 'r+').read()", (L, M)),
    "sees another process": Attack("return os.listdir(f'/proc/{parent}')", (L, M)),
    "reads its environment": Attack("return open(f'/proc/{parent}/environ').read()", (L, M)),
    "opens its memory": Attack("return open(f'/proc/{parent}/mem', 'r+b')", (L, M)),
    "opens its descriptors": Attack("return os.listdir(f'/proc/{parent}/fd')", (L, M)),
    "stops it": Attack("os.kill(parent, signal.SIGSTOP)", (P, L)),
    "kills it": Attack("os.kill(parent, signal.SIGKILL)", (P, L)),
    "kills its group": Attack("os.killpg(parent, signal.SIGKILL)", (P, L)),
    "kills a thread of it": Attack("syscall(234 if x86 else 131, parent, parent, signal.SIGKILL)", (P, L)),
    "queues a signal": Attack(
        "info = struct.pack('iiiii', signal.SIGKILL, 0, -1, 0, 0).ljust(128, b'\\0')\n"
        "buffer = ctypes.create_string_buffer(info)\n"
        "return syscall(129 if x86 else 138, parent, signal.SIGKILL, ctypes.addressof(buffer))",
        (P, L),
    ),
    "signals by descriptor": Attack(
        "signal.pidfd_send_signal(os.pidfd_open(parent), signal.SIGKILL)",
        (S, P, L),
    ),
    "signals by a folder of /proc": Attack(
        "signal.pidfd_send_signal(os.open(f'/proc/{parent}', os.O_RDONLY), signal.SIGKILL)", (S, P, L, M)
    ),
    "owns a signal of its input": Attack(
        "import fcntl\nread, write = os.pipe()\nfcntl.fcntl(read, fcntl.F_SETOWN, parent)\n"
        "if fcntl.fcntl(read, fcntl.F_GETOWN) != parent: raise OSError\n",
        (S, P),
    ),
    "limits it": Attack("resource.prlimit(parent, resource.RLIMIT_NOFILE)", (P,)),
    "moves it to one core": Attack("os.sched_setaffinity(parent, os.sched_getaffinity(0))", (P,)),
    "slows it": Attack("os.setpriority(os.PRIO_PROCESS, parent, 19)", (P,)),
    "slows all": Attack("os.setpriority(os.PRIO_USER, os.getuid(), 19)", (S,)),
    "traces it": Attack("libc.ptrace.restype = ctypes.c_long; call(libc.ptrace, 16, parent, 0, 0)", (S, P, L)),
    "reads its memory": Attack(
        "here = ctypes.create_string_buffer(8)\n"
        "vector = (ctypes.c_ulong * 2)(ctypes.addressof(here), 8)\n"
        "libc.process_vm_readv.restype = ctypes.c_ssize_t\n"
        "try:\n    return call(libc.process_vm_readv, parent, vector, 1, vector, 1, 0)\n"
        "except OSError as error:\n    if error.errno != errno.EFAULT: raise\n    return 'tried'",
        (S, P, L),
    ),
    "connects": Attack(
        "one = socket.socket(); one.settimeout(1)\ntry:\n    one.connect(('127.0.0.1', int(sys.argv[4])))\n"
        "except ConnectionRefusedError:\n    raise OSError from None",
        (S, N, L),
    ),
    "binds": Attack("one = socket.socket(); one.bind(('127.0.0.1', 0)); one.listen()", (S, L)),
    "sends a datagram": Attack("socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", (S,)),
    "asks the kernel": Attack("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", (S,)),
    "encrypts by the kernel": Attack("socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)", (S,)),
    "opens a local socket": Attack("socket.socket(socket.AF_UNIX)", (S,)),
    "connects a pair anew": Attack("socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", (S,)),
    "reads a key": Attack("syscall(250 if x86 else 219, 0, -3, 0, 0, 0)", (S,)),
    "mounts": Attack("call(libc.mount, b'none', b'/mnt', b'tmpfs', 0, None)", (S, C)),
    "unshares": Attack("call(libc.unshare, 0x10000000)", (S,)),
    "clones into a namespace": Attack("syscall(56 if x86 else 220, 0x10000000 | 17, 0, 0, 0, 0)", (S,)),
    "clones by memory": Attack("syscall(435, 0, 0)", (S,)),
    "starts io_uring": Attack(
        "syscall(425, 4, ctypes.addressof(ctypes.create_string_buffer(120)))",
        (S,),
    ),
    "loads a program into the kernel": Attack("syscall(321 if x86 else 280, 0, 0, 0)", (S,)),
    "counts events": Attack("syscall(298 if x86 else 241, 0, 0, -1, -1, 0)", (S,)),
    "handles faults": Attack("syscall(323 if x86 else 282, 1)", (S,)),
    "makes a call that nobody knows": Attack("syscall(1000)", (S,)),
    "makes an x32 call": Attack("syscall(0x40000000 + 39)", (S,)),
    "uses shared memory of the user": Attack(
        "found = syscall(29 if x86 else 194, int(sys.argv[5]), 0, 0)",
        (S, Q),
    ),
    "types into a terminal": Attack("import fcntl; fcntl.ioctl(0, 0x5412, b'x')", (S,)),
    "sets the clock": Attack("time.clock_settime(time.CLOCK_REALTIME, time.time())", (S, C)),
    "becomes another user": Attack("os.setuid(12345)", (C,)),
    "takes all memory": Attack("bytearray(3 << 30)", ()),
    "fills the disk": Attack(
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nos.truncate(os.open('big', os.O_CREAT | os.O_RDWR), 10 << 30)",
        (),
    ),
    "opens descriptors without end": Attack("return [os.open('/dev/null', os.O_RDONLY) for _ in range(70000)]", ()),
}

HONEST = {
    "threads": "thread = threading.Thread(target=lambda: None); thread.start(); thread.join()",
    "a program": "assert subprocess.run(['sh', '-c', 'echo hi'], capture_output=True, text=True).stdout == 'hi\\n'",
    "a pipeline": "assert subprocess.run('echo hi | tr h j', shell=True, capture_output=True).stdout == b'ji\\n'",
    "a compiler": (
        "import shutil\n"
        "if shutil.which('cc'):\n"
        "    Path('f.c').write_text('int f(void) { return 7; }')\n"
        "    subprocess.run(['cc', '-shared', '-fPIC', '-o', 'f.so', 'f.c'], check=True)\n"
        "    assert ctypes.CDLL('./f.so').f() == 7"
    ),
    "a temporary file": "tempfile.NamedTemporaryFile().write(b'x'); assert Path(tempfile.mkdtemp()).is_dir()",
    "its home": "Path.home().joinpath('.cache').mkdir(exist_ok=True); Path.home().joinpath('.config').iterdir()",
    "a fork": (
        "pid = os.fork()\nif pid == 0: os._exit(3)\nassert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3"
    ),
    "a pool": (
        "import multiprocessing\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool: assert pool.map(abs, [-1, 2]) == [1, 2]"
    ),
    "a queue": (
        "import multiprocessing\ncontext = multiprocessing.get_context('fork')\nqueue = context.Queue()\n"
        "process = context.Process(target=queue.put, args=(7,)); process.start()\n"
        "assert queue.get() == 7; process.join()"
    ),
    "shared memory": (
        "from multiprocessing.shared_memory import SharedMemory\n"
        "one = SharedMemory(create=True, size=4096)\none.unlink()"
    ),
    "a child that it kills": ("child = subprocess.Popen(['sleep', '600']); child.kill(); assert child.wait() == -9"),
    "an event loop": "import asyncio; asyncio.run(asyncio.sleep(0))",
    "a process of an event loop": (
        "import asyncio\nasync def go():\n    return await (await asyncio.create_subprocess_exec('true')).wait()\n"
        "assert asyncio.run(go()) == 0"
    ),
    "much output": "print('x' * 3_000_000)",
    "its own process": "assert Path('/proc/self/maps').read_text() and Path('/proc/self/stat').read_text()",
    "the machine": "assert os.cpu_count() and Path('/proc/meminfo').read_text(); os.sched_getaffinity(0)",
    "names": "import pwd; pwd.getpwuid(0); socket.gethostname(); time.localtime()",
    "random numbers": "os.urandom(8); open('/dev/urandom', 'rb').read(8); open('/dev/null', 'w').write('x')",
    "native code": "libc.getpid(); ctypes.CDLL('libm.so.6').cos",
    "a library": "import json, sqlite3, ssl, decimal, lzma, hashlib; ssl.create_default_context()",
    "a package": (
        "try:\n    import numpy\nexcept ImportError:\n    return\n"
        "assert (numpy.ones((200, 200)) @ numpy.ones((200, 200))).sum() == 8e6"
    ),
}
