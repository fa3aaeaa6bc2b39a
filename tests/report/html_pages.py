"""Pages as a browser reads them."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser

X = "{http://www.w3.org/1999/xhtml}"
VOID = {"meta", "input", "br", "link", "img"}


class Tags(HTMLParser):
    """Tags and attributes that a browser's tokenizer finds; they must nest.

    Attributes:
        open: Tags that are not closed yet.
        attributes: Tag, name and value of each attribute.
        seen: Names of all tags.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(tag, *attr) for attr in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parse(page: str) -> tuple[ET.Element, Tags]:
    """Return a page as XML and as tags; fail if it is not well-formed."""
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return ET.fromstring(page.removeprefix("<!DOCTYPE html>")), tags


def text_of(element: ET.Element) -> str:
    """Return the text of an element with single spaces."""
    return " ".join("".join(element.itertext()).split())
