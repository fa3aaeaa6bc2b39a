"""Launches on their way to the device: passed on, or recorded while a CUDA graph is captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from pytest_nvfp4.driver.launches import HostSideError, Launch, ModuleImage
from pytest_nvfp4.driver.streams import Extent, Streams
from pytest_nvfp4.driver.variables import Variables

Captured: TypeAlias = tuple[Callable[[], None], ...]
"""The actions of each replay of a graph."""


class LaunchQueue:
    """Passes launches on, or records them while a capture is open, together with the reports to ``streams``.

    ``variables`` returns the memory of modules' variables; without it they have none.
    """

    def __init__(
        self,
        on_launch: Callable[[Launch], None],
        streams: Streams | None = None,
        variables: Variables = lambda _image, _fresh: {},
    ) -> None:
        self._on_launch = on_launch
        self._variables = variables
        self.streams = streams or Streams()

    def variables(self, image: ModuleImage, *, fresh: bool = False) -> Mapping[str, Extent]:
        """Return the memory of a module's variables by name; with ``fresh`` they get their initial values again.

        Raises HostSideError: they are unknown.
        """
        return self._variables(image, fresh)

    @property
    def capturing(self) -> bool:
        """Whether a capture is open."""
        return self.streams.captured is not None

    def __call__(self, launch: Launch) -> None:
        """Issue a launch, or record it."""
        if self.streams.captured is None:
            self._on_launch(launch)
        else:
            self.streams.captured.append(partial(self, launch))

    def begin(self) -> None:
        """Open a capture. Raises HostSideError if one is open already."""
        if self.streams.captured is not None:
            raise HostSideError("a CUDA graph is being captured already: end that capture first")
        self.streams.captured = []

    def end(self) -> Captured:
        """Close the capture and return what it recorded. Raises HostSideError if none is open."""
        if self.streams.captured is None:
            raise HostSideError("no CUDA graph is being captured")
        captured, self.streams.captured = tuple(self.streams.captured), None
        return captured

    def replay(self, captured: Captured) -> None:
        """Issue what a capture recorded."""
        with self.streams.replay():
            for act in captured:
                act()
