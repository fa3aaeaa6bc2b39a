"""Becomes another user, or takes back capabilities, by calls and by executing programs that are set-user-ID.

expected: contained
"""

import ctypes
import glob
import os
import stat
import struct
import subprocess

from harness import breach
from honest_gemm import compute

LIBC = ctypes.CDLL(None, use_errno=True)
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapAmb")


def status(pid):
    """Return the fields of a process's status."""
    with open(f"/proc/{pid}/status") as lines:
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


own = status("self")
if int(own["NoNewPrivs"]) != 1:
    breach("no_new_privs is not set")
for name in CAPABILITIES:
    if int(own[name], 16):
        breach(f"{name} is {own[name]}")
other = 0 if os.geteuid() else 12345
for call in (LIBC.setresuid, LIBC.setresgid):
    if call(other, other, other) == 0:
        breach(f"became user or group {other}")
header, every = struct.pack("<Ii", 0x20080522, 0), struct.pack("<6I", *[0xFFFFFFFF, 0xFFFFFFFF, 0] * 2)
if LIBC.capset(header, every) == 0 and int(status("self")["CapEff"], 16):
    breach("capset gave capabilities")
for program in sorted(glob.glob("/usr/bin/*") + glob.glob("/usr/sbin/*") + glob.glob("/bin/*")):
    if os.stat(program, follow_symlinks=False).st_mode & (stat.S_ISUID | stat.S_ISGID) == 0:
        continue
    try:
        started = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
        )
        made = status(started.pid)
    except OSError:
        continue
    # Real, effective, saved and file system identities; behind this wall they stay as they are.
    if made["Uid"] != own["Uid"] or made["Gid"] != own["Gid"] or any(int(made[name], 16) for name in CAPABILITIES):
        breach(f"{program} runs as {made['Uid'].split()} with {made['CapEff']}")
    started.kill()
    started.wait()

custom_kernel = compute
