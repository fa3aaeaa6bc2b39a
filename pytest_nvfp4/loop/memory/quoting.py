"""Untrusted text in a prompt: every line of it begins with ``| ``, so that no text can pose as one of the harness.

The text is bounded, and its invisible characters, which a model reads and a person does not, are escapes.
"""

from __future__ import annotations

from pytest_nvfp4.text import visible

MARK = "| "
_CUT = " [cut]"


def quoted(text: str, *, most: int) -> str:
    """Return some untrusted text as a quotation of several lines.

    Args:
        text: Any text.
        most: Characters of it that are quoted; the marks come on top.
    """
    shown = _bounded(visible(text.strip()[: most + 1], multiline=True), most)
    return "\n".join(f"{MARK}{line}".rstrip() for line in shown.split("\n"))


def one_line(text: str, *, most: int) -> str:
    """Return some untrusted text as a part of one line, of at most ``most`` characters."""
    return _bounded(visible(" ".join(text[: 4 * most].split())), most)


def _bounded(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(0, most - len(_CUT))] + _CUT[:most]
