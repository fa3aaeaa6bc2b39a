"""The first lines that run on the far side: unpack this package into a new folder, and start the agent from it.

It is sent as text and needs the standard library only. Until the agent takes over it says one line of JSON at a time,
each after ``NVFP4``, because a login shell may write its own greetings to the same stream.
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


def say(**what: Any) -> None:
    """One line to the near side."""
    sys.stdout.write("NVFP4 " + json.dumps(what) + "\n")
    sys.stdout.flush()


def clear(parent: Path) -> None:
    """Remove what agents left behind that were killed: folders of ours that nobody holds the lock of."""
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
def own_folder(parent: Path) -> Iterator[Path]:
    """A new folder, readable by its owner alone, and removed at the end."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink == 0:  # another agent had the lock first, and cleared it away
                    continue
                yield folder
                return
            finally:
                os.close(descriptor)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def unpack(data: bytes, folder: Path) -> None:
    """Unpack the package; it was packed by the near side and its hash was compared."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)


def main() -> None:
    """Read settings and package, and serve."""
    settings = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read(settings["size"])
    if hashlib.sha256(data).hexdigest() != settings["sha256"]:
        say(trouble="damaged", what=f"{len(data)} of {settings['size']} bytes came through whole")
        return
    parent = Path(settings["folder"] or tempfile.gettempdir()).expanduser()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        clear(parent)
        with own_folder(parent) as folder:
            unpack(data, folder / "package")
            scratch = folder / "tmp"
            scratch.mkdir()
            # Whatever is written from here on, by a kernel too, is removed with the folder.
            tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
            sys.path.insert(0, str(folder / "package"))
            serve(settings)
    except OSError as error:
        say(trouble="disk", what=f"{error.strerror or error}", where=str(error.filename or parent))


def serve(settings: dict[str, Any]) -> None:
    """Hand over to the agent of the package that came along."""
    try:
        from pytest_nvfp4.device.remote.link.agent import Agent
    except ImportError as error:
        say(trouble="import", module=error.name or "", what=str(error), python=sys.executable)
        return
    Agent(settings).serve()


if __name__ == "__main__":
    main()
    os._exit(0)  # a thread still listens to standard input, which would not let the interpreter end in peace
