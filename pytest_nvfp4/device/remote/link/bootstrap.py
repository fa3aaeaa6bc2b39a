"""First code on the remote side: unpack this package into a new folder, and start the agent from it.

It is sent as text and uses the standard library only. Until the agent takes over, it reports failures as lines of JSON
after ``NVFP4``, because a login shell may print a banner to the same stream.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PREFIX = "nvfp4-remote-"
_LOCK = ".in-use"


def report(**failure: Any) -> None:
    """Write one line to the local side."""
    sys.stdout.write("NVFP4 " + json.dumps(failure) + "\n")
    sys.stdout.flush()


def remove_stale(parent: Path) -> None:
    """Remove the folders of killed agents: those of this user whose lock is free."""
    for folder in parent.glob(PREFIX + "*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


@contextmanager
def private_folder(parent: Path) -> Iterator[Path]:
    """Create a folder that only its owner can read, hold its lock, and remove it at the end."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink == 0:  # another agent took the lock first, and removed the folder
                    continue
                yield folder
                return
            finally:
                os.close(descriptor)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def unpack(data: bytes, folder: Path) -> None:
    """Unpack the package, whose hash was compared."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        if hasattr(tarfile, "data_filter"):  # PEP 706; Python 3.11.4 and newer
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)


def main() -> None:
    """Read settings and package, and start the agent."""
    settings = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read(settings["size"])
    if hashlib.sha256(data).hexdigest() != settings["sha256"]:
        report(failed="damaged", problem=f"{len(data)} of {settings['size']} bytes, with another hash")
        return
    parent = Path(settings["folder"] or tempfile.gettempdir()).expanduser()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_stale(parent)
        with private_folder(parent) as folder:
            unpack(data, folder / "package")
            scratch = folder / "tmp"
            scratch.mkdir()
            # Temporary files, also those of kernels, are removed with the folder.
            tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
            sys.path.insert(0, str(folder / "package"))
            serve(settings)
    except OSError as error:
        report(failed="disk", problem=f"{error.strerror or error}", path=str(error.filename or parent))


def serve(settings: dict[str, Any]) -> None:
    """Run the agent of the unpacked package."""
    try:
        from pytest_nvfp4.device.remote.link.agent import Agent
    except ImportError as error:
        report(failed="import", module=error.name or "", problem=str(error), python=sys.executable)
        return
    Agent(settings).serve()


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread still reads standard input, on which the interpreter's shutdown would block
