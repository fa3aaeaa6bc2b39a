"""Detection of swapped code in a process that a kernel shares with what judges or times it.

Where a kernel and its judge must share a process (a worker with a GPU, a worker that compiles), a second process holds
the result pipe: the *keeper*, from which the first one is forked (``keeper``). Before the kernel's first line runs, the
worker lists the words of its memory that make up the code which judges (``inventory``), and the keeper reads their
values. It reads them again at random times and at the end, through ``/proc/PID/mem``, with code and data that the
kernel cannot reach. A function with another ``__code__``, default, closure or global name shows, whoever replaced it
and however: the comparison asks no object of the worker anything.

What this still trusts: memory that is restored between two readings, native code that changes machine code or
interpreter state outside the listed words, and the hardware and driver of a GPU.
"""
