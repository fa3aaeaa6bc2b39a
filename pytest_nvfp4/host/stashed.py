"""Exceptions of stand-ins that C code calls.

An exception cannot unwind through C. It is kept until the wrapper around the C code raises it. C code that ends the
process before that, because it aborts on an error or uses what the stand-in did not provide, leaves the text of the
exception in a file, for the process that finds this one dead.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import IO, Any

MARK = "Raised by a stand-in and not yet by the host code: "
"""Begins the line of the exception in the file; its traceback follows."""


class Stashed:
    """At most one exception: the first one, which caused the others.

    Args:
        record: The file, if any; empty while there is no exception.
    """

    def __init__(self, record: IO[str] | None = None) -> None:
        self._record = record
        self._error: BaseException | None = None

    @property
    def pending(self) -> bool:
        """Whether an exception waits to be raised."""
        return self._error is not None

    def keep(self, error: BaseException) -> None:
        """Keep an exception unless there is one."""
        if self._error is not None:
            return
        self._error = error
        if self._record is not None:
            first, *_ = str(error).splitlines() or [""]
            self._record.write(f"{MARK}{type(error).__name__}: {first}\n")
            self._record.writelines(traceback.format_exception(error))
            self._record.flush()

    def take(self) -> BaseException | None:
        """Return the exception, if any, and forget it."""
        error, self._error = self._error, None
        if error is not None and self._record is not None:
            self._record.seek(0)
            self._record.truncate()
        return error

    def raising(
        self, function: Callable[..., Any], convert: Callable[[BaseException], BaseException] = lambda error: error
    ) -> Callable[..., Any]:
        """Return a function that calls C code, and raises the converted exception that a stand-in raised meanwhile."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            error: BaseException | None = None
            result: Any = None
            try:
                result = function(*args, **kwargs)
            except BaseException as caught:
                error = caught
            # Raised outside the handler, so that an exception keeps its cause and context.
            stashed = self.take()
            if stashed is not None:
                raise convert(stashed)
            if error is not None:
                raise error
            return result

        return call
