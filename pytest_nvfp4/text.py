"""Escaping and shortening of untrusted text.

A kernel chooses the names of its variables and files and the text of its messages. They may contain control characters
(terminal escapes, new lines), bidirectional overrides or zero-width characters, which must not take effect in a
terminal, a pull request or a page.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, *, multiline: bool = False) -> str:
    """Return a text with every character that is invisible, reorders text or controls a terminal as an escape.

    Args:
        text: Any text, including lone surrogates.
        multiline: Leave new lines and tabs, for messages; names have none.
    """
    if text.isascii() and text.isprintable():
        return text
    allowed = "\n\t" if multiline else ""
    if multiline:
        text = text.replace("\r\n", "\n")
    return "".join(char if char in allowed or _is_visible(char) else _escape(char) for char in text)


def _is_visible(char: str) -> bool:
    return unicodedata.category(char) not in _HIDDEN


def _escape(char: str) -> str:
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def clip(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters, else its start and the number of characters left out."""
    if len(text) <= limit:
        return text
    tail = f" ... [{len(text) - limit} characters left out]"
    return text[:limit] + tail


def plural(count: int, noun: str, several: str = "") -> str:
    """Return a count with its noun: ``1 layout``, ``2 layouts``, ``2 launches``."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"
