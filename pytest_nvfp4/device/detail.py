"""What a report draws of a simulated call beyond its counters (``Simulating.detailed``). Nothing here is a time.

A source is ``FILE:LINE``, with the file relative to the kernel's folder, or absolute outside it; empty if unknown.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pytest_nvfp4.isolation.door.fields import Count, Index, Name, Size

MOST = 10_000
"""Largest number of entries of each list."""


class _Open(BaseModel):
    """A model that ignores unknown fields, which a later version may add."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class LineCounts(_Open):
    """Counters of one source line, by name; ``instructions`` is the number of executions by warps."""

    source: Name
    counters: Annotated[dict[Name, Count], Field(max_length=1000)]


class ColumnSpan(_Open):
    """TMEM columns of the first CTA that hold one thing from one use to another.

    Attributes:
        what: ``accumulator``, ``load``, ``SFA``, ``SFB``, ``SFA and SFB``, ``scale factors`` (never read), ``other``.
        column, columns: The first one, and how many.
        first, last: Numbers of the first and last use among all uses of columns by the CTA, in simulated order.
        source: Line of the first use.
    """

    what: Name
    column: Index
    columns: Index
    first: Index
    last: Index
    source: Name


class SharedRange(_Open):
    """Shared memory of the first CTA that copies fill (``load``) or read (``store``), or an mbarrier (``barrier``).

    Attributes:
        offset: First byte.
        bytes: Number of bytes.
        source: Line of the copy, or of the initialisation of the barrier.
        times: Number of copies of these bytes, or of completed phases.
    """

    what: Name
    offset: Size
    bytes: Size
    source: Name
    times: Count


class WrittenTile(_Open):
    """A rectangle of C that one CTA of a launch wrote: index of the launch, linear index of the CTA, place and size."""

    launch: Index
    cta: Index
    row: Index
    column: Index
    rows: Index
    columns: Index


class LaunchDetail(_Open):
    """The detail of one launch.

    Attributes:
        lines: Counters by source line.
        columns: Uses of TMEM columns by the first CTA; ``columns_left_out`` is the number of later ones.
        shared: Uses of its shared memory by copies and barriers.
    """

    lines: Annotated[tuple[LineCounts, ...], Field(max_length=MOST)] = ()
    columns: Annotated[tuple[ColumnSpan, ...], Field(max_length=MOST)] = ()
    columns_left_out: Count = 0
    shared: Annotated[tuple[SharedRange, ...], Field(max_length=MOST)] = ()
