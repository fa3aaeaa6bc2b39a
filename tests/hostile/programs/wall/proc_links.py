"""Looks for the user's files through links of /proc that lead out of every folder.

expected: contained
"""

import os

import bait
from harness import breach
from honest_gemm import compute

SECRETS = (f"{bait.HOME}/.ssh/id_ed25519", f"{bait.HOME}/.netrc", f"{bait.REPOSITORY}/secret.py")
for root in (
    "/proc/self/root",
    "/proc/1/root",
    "/proc/thread-self/root",
    f"/proc/{os.getppid()}/root",
    "/proc/self/cwd/" + "../" * 30,
):
    for path in SECRETS:
        try:
            with open(root + path) as file:
                if bait.SECRET in file.read():
                    breach(f"{root}{path} was read")
        except OSError:
            continue
for name in os.listdir("/proc/self/fd"):
    try:
        folder = os.open(f"/proc/self/fd/{name}/..", os.O_RDONLY | os.O_DIRECTORY)
        with open(os.open(SECRETS[0][1:], os.O_RDONLY, dir_fd=folder)) as file:
            breach(f"{file.read()[:9]} was read below descriptor {name}")
    except OSError:
        continue

custom_kernel = compute
