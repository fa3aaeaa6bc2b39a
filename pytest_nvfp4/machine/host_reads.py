"""What host code reads of device memory in one call, given to it again in calls whose launches are not executed.

Such a call computes nothing, so that what the host would read there differs from what it read before, and its checks of
a result would fail. On the same inputs, host code reads the same in each call unless it keeps state. A read that the
first call did not make is answered from what the launches before it compute (``unlike``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pytest_nvfp4.machine.wire import Answer, Blob, Message

_MOST_BYTES: Final = 256 << 20
_ON_DEVICE: Final = ("new", "tensor", "argument")
"""Results that hold no bytes (see ``torch_requests``)."""


class HostReads:
    """The answers of one call that hold what the host reads, in order, up to 256 MiB."""

    def __init__(self) -> None:
        self._answers: list[tuple[str, Answer]] = []
        self._bytes = 0
        self._next: int | None = None
        self._unlike: Callable[[Message, Answer], Answer] | None = None

    def again(self, unlike: Callable[[Message, Answer], Answer] | None = None) -> None:
        """Give these answers in the calls that follow, from the first one on.

        ``unlike`` returns the answer to a read that the first call did not make, in place of the one that it gets.
        """
        self._next = 0
        self._unlike = unlike

    def answered(self, request: Message, answer: Answer) -> Answer:
        """Return the answer to give in place of one that holds what the host reads.

        The first request that is unlike that of the first call, and those after it, get the answers of ``unlike``.
        """
        if self._next is None:
            self._bytes += sum(map(len, answer[1]))
            if self._bytes <= _MOST_BYTES:
                self._answers.append((request.kind, answer))
            return answer
        if self._next < len(self._answers):
            kind, before = self._answers[self._next]
            if kind == request.kind and _alike(answer, before):
                self._next += 1
                return _with_values(answer, before)
            self._next = len(self._answers)
        return answer if self._unlike is None else self._unlike(request, answer)


def _alike(one: Answer, other: Answer) -> bool:
    """Return whether two answers have values of the same kinds and sizes."""
    return _form(one[0]) == _form(other[0]) and list(map(len, one[1])) == list(map(len, other[1]))


def _form(value: Any) -> Any:
    if isinstance(value, list):
        return [_form(each) for each in value]
    if not isinstance(value, dict):
        return type(value)
    if value.keys() & {"host", *_ON_DEVICE}:
        return list(value), value.get("host")
    return {name: _form(each) for name, each in value.items()}


def _with_values(answer: Answer, before: Answer) -> Answer:
    """Return an answer with the numbers and bytes of an earlier one that is alike.

    Addresses, and the state of a random generator, which the host has in both calls, are its own.
    """
    fields, blobs = answer
    generator = fields.get("generator")
    kept: Sequence[Blob] = [blob if at == generator else before[1][at] for at, blob in enumerate(blobs)]
    return {name: _value(value, before[0][name]) for name, value in fields.items()}, list(kept)


def _value(value: Any, before: Any) -> Any:
    if isinstance(value, list):
        return [_value(each, old) for each, old in zip(value, before, strict=True)]
    if isinstance(value, dict) and value.keys() & {*_ON_DEVICE}:
        return value
    return before
