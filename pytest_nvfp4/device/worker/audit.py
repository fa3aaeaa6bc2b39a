"""Notice what a kernel's own code asks of Python that no product needs: the frames, heap and files of what tests it.

Python tells an audit hook when a frame, the heap, a file or a tracing function is asked for (PEP 578), and a hook
cannot be taken away again. What counts is who asks: only the kernel's own files are watched, not torch and the DSL,
which look at frames all the time. Nothing is forbidden; it is noted, and the verdict says so.

It is no wall. Native code is not seen, and who shares a process can do in it what he likes. It makes the short ways to
a forged answer show.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

_FRAMES = {
    "sys._getframe": "the frames of its callers",
    "sys._current_frames": "the frames of all threads",
    "gc.get_objects": "every object of the process",
    "gc.get_referrers": "who holds an object",
    "gc.get_referents": "what an object holds",
    "sys.settrace": "every line that runs",
    "sys.setprofile": "every call that is made",
}
_FRAME_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_FILES = {
    "open": 1,
    "os.chmod": 1,
    "os.link": 2,
    "os.listdir": 1,
    "os.mkdir": 1,
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.scandir": 1,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.utime": 1,
}
"""Events about files, with how many of their first arguments are paths."""
_READS = frozenset({"os.listdir", "os.scandir"})
_PROCESS = re.compile(r"/proc/(self|thread-self|\d+)/(task/\d+/)?(fd|fdinfo|mem|environ|cmdline|maps|map_files)(/|$)")
_STANDARD = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class KernelAudit:
    """Notes what the kernel's own code asks for, from :meth:`start` to the end of the process.

    Args:
        own: Whether a file is one of the kernel's.
        folder: The job's folder.
        open_to_it: Folders below it that the kernel may use.
        kept: Folders that it must not write to: this package, what earlier runs kept.
    """

    def __init__(
        self, *, own: Callable[[str], bool], folder: Path, open_to_it: tuple[Path, ...], kept: tuple[Path, ...]
    ) -> None:
        self._own = own
        self._folder = _beginning(folder)
        self._open = tuple(_beginning(one) for one in open_to_it)
        self._kept = tuple(_beginning(one) for one in kept)
        self._noted: dict[str, None] = {}
        self._here = threading.local()

    def start(self) -> None:
        """Begin, for good: a hook cannot be removed."""
        sys.addaudithook(self._hook)

    @property
    def noted(self) -> list[str]:
        """What was asked for, each with its line."""
        return list(self._noted)

    def note(self, what: str) -> None:
        """Note something that was seen in another way."""
        self._noted.setdefault(what)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FRAMES:
            what = _FRAMES[event]
        elif event in _FILES:
            what = ""
        elif event == "object.__getattr__" and arguments[1] in _FRAME_ATTRIBUTES:
            what = f"a frame ({arguments[1]})"
        else:
            return
        if getattr(self._here, "busy", False):
            return
        self._here.busy = True
        try:
            frame = sys._getframe(1)
            if what:
                self._asked(what, _asking(frame))
            else:
                self._touched(event, arguments, frame)
        finally:
            self._here.busy = False

    def _asked(self, what: str, frame: FrameType | None) -> None:
        if frame is not None and self._own(frame.f_code.co_filename):
            self.note(f"{_place(frame)} asks for {what}")

    def _touched(self, event: str, arguments: tuple[Any, ...], frame: FrameType | None) -> None:
        paths = [_path(argument) for argument in arguments[: _FILES[event]]]
        reads = event in _READS or (event == "open" and not _writes(arguments))
        found = next((path for path in paths if path is not None and self._matters(path, reads=reads)), None)
        if found is None:
            return
        while frame is not None and _standard(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None and self._own(frame.f_code.co_filename):
            self.note(f"{_place(frame)} {'reads' if reads else 'changes'} {found}, which is none of its files")

    def _matters(self, path: str, *, reads: bool) -> bool:
        if _PROCESS.match(path):
            return True
        path += os.sep  # a folder is below itself
        if path.startswith(self._folder):
            return not path.startswith(self._open)
        return not reads and path.startswith(self._kept)


def trap_oracle(watch: KernelAudit) -> None:
    """Note whoever computes with the oracle: a worker has no use for it, its parent judges."""
    from pytest_nvfp4.numerics import inputs, oracle

    exact_product = oracle.exact_product

    def trap(**operands: Any) -> oracle.Exact:
        watch.note("the kernel computes with the oracle of what tests it")
        return exact_product(**operands)

    for module in (inputs, oracle):
        vars(module)["exact_product"] = trap


def _beginning(folder: Path) -> str:
    return os.path.realpath(folder) + os.sep


def _path(argument: object) -> str | None:
    """A path in full, without links in its folder: the last part itself may be one."""
    if not isinstance(argument, str | bytes | os.PathLike):
        return None
    text = os.path.abspath(os.fsdecode(argument))  # noqa: PTH100 - a link as the last part stays what it is
    if text.startswith("/proc/"):
        return text
    return f"{os.path.realpath(Path(text).parent)}{os.sep}{Path(text).name}"


def _writes(arguments: tuple[Any, ...]) -> bool:
    mode, flags = (*arguments, None, None)[1:3]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITING)


def _standard(file: str) -> bool:
    return file.startswith("<frozen ") or (file.startswith(_STANDARD) and "-packages" not in file)


def _asking(frame: FrameType | None) -> FrameType | None:
    """Who asks for a frame: who calls ``inspect``, or has ``traceback`` hand frames out.

    What else in the standard library looks at frames (``logging``, ``namedtuple``, printing a traceback) does not give
    them away.
    """
    while frame is not None:
        name = Path(frame.f_code.co_filename).name
        walks = name == "traceback.py" and frame.f_code.co_name in ("walk_stack", "walk_tb")
        if not (_standard(frame.f_code.co_filename) and (name == "inspect.py" or walks)):
            return frame
        frame = frame.f_back
    return None


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
