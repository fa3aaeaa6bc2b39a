"""What the attacks have in common: the names of the harness, and ways to forge an answer once it is reached."""

import contextlib
import json
import os
import stat
import sys

PACKAGE = "pytest" + "_nvfp4"


def module(name):
    """Return a module of the harness, whether or not it is loaded."""
    return __import__(f"{PACKAGE}.{name}", fromlist=["_"])


def callers(frame):
    """Return every frame from one outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def fill_from(frames, data):
    """Write the exact C, if a frame holds the harness's inputs; return whether one did."""
    import torch

    for frame in frames:
        for value in list(frame.f_locals.values()):
            groups = getattr(value, "groups", None)
            if isinstance(groups, tuple) and groups and hasattr(groups[0], "exact"):
                for (_, _, c), group in zip(data[0], groups, strict=False):
                    c[:, :, 0].copy_(torch.from_numpy(group.exact().rounded().copy()))
                print("BREACH: the inputs of the harness were reached")
                return True
    return False


def forge(*events):
    """Write events to every pipe and socket of this process."""
    text = "".join(json.dumps(event) + "\n" for event in events).encode()
    for descriptor in range(3, 256):
        with contextlib.suppress(OSError):
            if stat.S_IFMT(os.fstat(descriptor).st_mode) in (stat.S_IFIFO, stat.S_IFSOCK):
                os.set_blocking(descriptor, False)
                os.write(descriptor, text)


def outputs(data):
    """Return the tensors of C, in which nothing was written."""
    return [c for _, _, c in data[0]]


def breach(what):
    """Say that an attack succeeded."""
    sys.stdout.write(f"BREACH: {what}\n")
    sys.stdout.flush()


def fail(what):
    """End a compile with an error that says what was reached; nobody reads its output."""
    raise AssertionError(f"BREACH: {what}")
