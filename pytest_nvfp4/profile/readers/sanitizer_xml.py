"""Read what ``compute-sanitizer --xml --save FILE`` writes, record by record, up to where a killed process stopped.

The parser refuses document types and entities, which an XML of this tool never has and with which a small file expands
to gigabytes. Source: Compute Sanitizer documentation, "Suppressions" (the records); the fields were read from reports.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final
from xml.etree import ElementTree
from xml.parsers import expat

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.profile.result import Defect

_ROOT: Final = "ComputeSanitizerOutput"
_DEPTH: Final = 40
_ELEMENTS: Final = 1_000_000
_RECORDS: Final = 10_000
_TEXT: Final = 100_000
_SUMMARY: Final = re.compile(r"([A-Z]+) SUMMARY: (\d{1,12}) (?:error|hazard)")


class _Records:
    """Builds the elements of each record, and forgets it once it was read."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._open: list[ElementTree.Element] = []
        self._elements = 0
        self._characters = 0
        self.records: list[ElementTree.Element] = []
        self.rooted = False

    def start(self, name: str, attributes: dict[str, str]) -> None:
        del attributes
        self._elements += 1
        if len(self._open) >= _DEPTH or self._elements > _ELEMENTS:
            raise DoorError(self._source, f"has more than {_DEPTH} levels or {_ELEMENTS} elements")
        if not self._open:
            if name != _ROOT:
                raise DoorError(self._source, f"is no report of compute-sanitizer: its root is {name[:80]!r}")
            self.rooted = True
        element = ElementTree.Element(name)
        element.text = ""
        if len(self._open) > 1:
            self._open[-1].append(element)
        self._open.append(element)
        self._characters = 0

    def end(self, name: str) -> None:
        element = self._open.pop()
        if len(self._open) == 1 and name == "record":
            if len(self.records) >= _RECORDS:
                raise DoorError(self._source, f"has more than {_RECORDS} records")
            self.records.append(element)

    def text(self, text: str) -> None:
        if self._open and self._characters < _TEXT:
            self._characters += len(text)
            self._open[-1].text = (self._open[-1].text or "") + text[:_TEXT]

    def refuse(self, *_: object) -> None:
        raise DoorError(self._source, "declares a document type or an entity, which no report of this tool does")


def read_sanitizer_xml(data: bytes, *, source: str) -> tuple[tuple[Defect, ...], tuple[str, ...]]:
    """Return the defects of a report, equal ones once with their number, and remarks on the file.

    Raises:
        DoorError: It is no report of compute-sanitizer.
    """
    records = _Records(source)
    parser = expat.ParserCreate("utf-8")  # whatever the file declares: no other codec is looked up
    parser.StartElementHandler = records.start
    parser.EndElementHandler = records.end
    parser.CharacterDataHandler = records.text
    parser.StartDoctypeDeclHandler = records.refuse
    parser.EntityDeclHandler = records.refuse
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    notes: tuple[str, ...] = ()
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        if not records.rooted:
            raise DoorError(source, f"is no XML: {error}") from None
        notes = (f"the report ends early or is damaged ({error}): records behind that are missing",)
    except ValueError as error:
        if isinstance(error, DoorError):
            raise
        raise DoorError(source, f"is no XML: {error}") from None
    counts: Counter[Defect] = Counter(_defect(record) for record in records.records)
    return tuple(defect.model_copy(update={"count": count}) for defect, count in counts.items()), notes


def summary(log: str) -> int | None:
    """Return the number of errors that the last line of a log states; None if it states none."""
    found = _SUMMARY.findall(log)
    return int(found[-1][1]) if found else None


def _defect(record: ElementTree.Element) -> Defect:
    level = _text(record, "level").lower()
    text = _text(record, "what/text") or " ".join(part.strip() for part in record.itertext() if part.strip())
    places = []
    for title, path in (("block", "blockIdx"), ("block", "blockId"), ("thread", "threadIdx"), ("thread", "threadId")):
        if (found := record.find(f"who/{path}")) is not None:
            axes = [(found.findtext(axis) or "").strip() for axis in "xyz"]
            shown = ",".join(axes) if any(axes) else (found.text or "").strip()
            places.append(f"{title} ({shown})")
    address = _text(record, "what/accessAddress") or _text(record, "what/address")
    details = [*places, *([f"address {address}"] if address else [])]
    file, line = _text(record, "where/path") or _text(record, "where/file"), _text(record, "where/line")
    return Defect(
        kind=(_text(record, "kind") or "unknown")[:4096],
        text=(text + (f" ({', '.join(details)})" if details else ""))[:_TEXT],
        severity="warning" if level in ("warning", "info") else "error",
        kernel=_text(record, "where/func")[:4096],
        file=file[:4096] or None,
        line=int(line) if line.isascii() and line.isdigit() and 0 < len(line) < 10 else None,
    )


def _text(record: ElementTree.Element, path: str) -> str:
    return (record.findtext(path) or "").strip()
