"""Worker processes that start with everything imported, forked from a server that runs no code of a kernel.

Importing torch, numpy and this package takes most of the time until a worker reaches its kernel's first line. A fork
server imports them once; each of its child processes receives the descriptors, environment, working directory and
arguments of its job, leads its own session, and runs its worker's module as ``__main__``.

A child equals a process started from nothing in its session, limits, deadline, exit status, signals,
random state (everything is seeded anew), import path and environment. It differs in this: Python's hash seed and the
addresses of libraries are those of the server, ``/proc/PID/cmdline`` names the server, and its parent is the server.
The server ends with the process that started it, and its children end with the server. Whenever a child cannot equal
the process it replaces (``compatibility``), or the server fails, the caller starts a plain process instead.

``multiprocessing.forkserver`` is not used for several reasons. It sends pickles, which must not cross this boundary. It
has one server per process, so one environment and one list of preloaded modules. Its children stay in the server's
session, keep its streams and environment, and run a function rather than a module as ``__main__``. It starts a
resource tracker, and does not adopt orphaned processes.
"""
