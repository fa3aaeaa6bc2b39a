"""Processes that begin with everything imported: forked from one that has imported it and runs nothing of a kernel's.

Importing torch, numpy and this package takes a worker most of the time until its kernel's first line. A nursery is a
process that does so once, and is then asked for children: each takes over descriptors, environment, folder and
arguments of its job, leads its own session, and runs its worker's module as a process that begins from nothing would.

What is the same as there: the session, the limits, the deadline, the mark by which stragglers are found, exit status
and signals, what is random (all of it is seeded anew), the path of imports, and the environment. What differs: Python's
hash seed and the addresses of libraries are those of the nursery, so they are alike in all its children, and
``/proc/PID/cmdline`` names the nursery. The parent of a child is the nursery; it ends with this process, and they with
it. Whatever stands in the way, the job is run from nothing instead.
"""

from pytest_nvfp4.isolation.nursery.client import Birth
from pytest_nvfp4.isolation.nursery.forked import Forked
from pytest_nvfp4.isolation.nursery.pool import NURSERIES, SWITCH, Nurseries

__all__ = ["NURSERIES", "SWITCH", "Birth", "Forked", "Nurseries"]
