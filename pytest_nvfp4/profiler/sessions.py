"""Sessions: while one is active, kernels that are compiled record their regions, and the session reads the records.

Kernels are compiled once and keep the address of their buffer, so buffers live as long as the process, and a kernel
that was compiled in one session records into it whenever it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from pytest_nvfp4.profiler.emit import Switch
from pytest_nvfp4.profiler.exchange import as_data
from pytest_nvfp4.profiler.records import KernelRecord, buffer_words, decode

MOST_BYTES = 1 << 30
"""Largest buffer of a kernel."""


@dataclass(slots=True)
class _Buffer:
    kernel: str
    number: int
    words: Any
    regions: dict[str, int] = field(default_factory=dict)


class Session:
    """Buffers of the kernels that were compiled while it was active.

    Args:
        slices: Warps of a grid that are recorded: the first ones, by CTA.
        events: Events of each warp and channel that are kept; later ones are counted.

    Raises ValueError for numbers that are not positive, or too large for one buffer.
    """

    def __init__(self, *, slices: int = 2048, events: int = 256) -> None:
        if slices < 1 or events < 1 or 4 * buffer_words(slices, events) > MOST_BYTES:
            raise ValueError(
                f"{slices} slices of {events} events: give positive numbers whose buffer, of 32 bytes for each slice "
                f"and event, has at most {MOST_BYTES >> 20} MiB"
            )
        self.slices, self.events = slices, events
        self._buffers: list[_Buffer] = []

    def buffer(self, kernel: str) -> tuple[int, int, dict[str, int]]:
        """Return the number of a kernel that is being compiled, the address of its buffer, and its regions.

        A kernel of the same name has the same ones: a jitted function that is called again is traced again, and the DSL
        finds it compiled only if its code is the same.
        """
        made = next((each for each in self._buffers if each.kernel == kernel), None)
        if made is None:
            torch = import_module("torch")
            words = torch.zeros(buffer_words(self.slices, self.events), dtype=torch.int32, device="cuda")
            made = _Buffer(kernel, len(Switch.kernels), words)
            self._buffers.append(made)
        return made.number, made.words.data_ptr(), made.regions

    def clear(self) -> None:
        """Forget the events so far, such as those of a warm-up, when all launches have ended."""
        torch = import_module("torch")
        torch.cuda.synchronize()
        for each in self._buffers:
            each.words.zero_()
        torch.cuda.synchronize()

    def records(self) -> list[KernelRecord]:
        """Return what the kernels have recorded since ``clear``, when all launches have ended."""
        import_module("torch").cuda.synchronize()
        found = []
        for each in self._buffers:
            words = memoryview(each.words.cpu().numpy()).cast("B").cast("I")
            found.append(
                decode(words, kernel=each.kernel, regions=list(each.regions), slices=self.slices, events=self.events)
            )
        return [record for record in found if record.launches]

    def write(self, file: str | Path) -> None:
        """Write the records as JSON, which ``nvfp4 regions show`` reads."""
        Path(file).write_text(json.dumps(as_data(self.records())), encoding="utf-8")


def begin(*, slices: int = 2048, events: int = 256) -> Session:
    """Begin a session, which ends with the process unless `session` ends it. Raises as that does."""
    if Switch.recorder is not None:
        raise RuntimeError("a session of regions is active already: leave it first")
    made = Session(slices=slices, events=events)
    Switch.recorder = made
    return made


@contextmanager
def session(*, slices: int = 2048, events: int = 256) -> Iterator[Session]:
    """Let kernels that are compiled meanwhile record their regions (see ``Session``).

    Raises RuntimeError inside another session, whose kernels would be divided between both.
    """
    made = begin(slices=slices, events=events)
    try:
        yield made
    finally:
        Switch.recorder = None
