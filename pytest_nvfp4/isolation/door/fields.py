"""Types of the fields of answers. A number is finite and in a range, and a text and a list are bounded."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
"""An immutable model without unknown fields and without numbers that are not finite."""

MOST_EVENTS = 1_000_000
"""Largest number of entries of a list of an answer that a benchmark of 100,000 rounds makes long."""

Index = Annotated[int, Field(ge=0, lt=1 << 31)]
"""An index or a count. Whether it lies within what was asked is compared with the request."""
Extent = Annotated[int, Field(ge=1, lt=1 << 31)]
"""A number of things of which there is at least one: CTAs of a grid, SMs."""
Size = Annotated[int, Field(ge=0, lt=1 << 50)]
"""A number of bytes."""
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
"""A number of events in a simulated launch."""
Seconds = Annotated[float, Field(ge=0, le=1e7)]
Microseconds = Annotated[float, Field(ge=0, le=1e13)]
Name = Annotated[str, Field(max_length=4096)]
"""A name or a line: mangled names of templates have hundreds of characters."""
Sentence = Annotated[str, Field(max_length=100_000)]
"""Text of a message or of an instruction."""
Output = Annotated[str, Field(max_length=1 << 20)]
"""The end of a stream of output."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
