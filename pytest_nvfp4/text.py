"""Escaping and shortening of untrusted text.

A kernel chooses the names of its variables and files and the text of its messages; a remote chooses its own. They may
contain control characters (terminal escapes, new lines), bidirectional overrides or zero-width characters, which must
not take effect in a terminal, a pull request or a page, and lines that the runner of a CI takes for commands.

Each sink has one function: `printed` for terminals and logs, `json_text` for JSON on them, `visible` for names and for
what a page or a pull request escapes further (``report.markdown.code`` and ``prose``, ``report.github.annotation``,
the templates of ``report.html``).
"""

from __future__ import annotations

import json
import re
import unicodedata

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMAND = re.compile(r"^(\s*):(?=:\s*[^\s\"'(:])|(?<=#)#(?=\[|vso\[)", re.MULTILINE)
"""Start of a workflow command: ``::name`` after blanks, ``##[name]`` anywhere (GitHub's runner), ``##vso[`` (Azure).

No name begins with a quotation mark, as operands of inline assembly do: ``::"r"(address)``.
"""
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks without a glyph (Unicode, Default_Ignorable_Code_Point, and the empty braille pattern)."""
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
    return unicodedata.category(char) not in _HIDDEN and char not in _BLANK


def _escape(char: str) -> str:
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def printed(text: str) -> str:
    """Return a text of several lines for a terminal or the log of a CI: without colours, hidden characters, commands.

    New lines, tabs and letters of every script stay.
    """
    return without_commands(visible(_COLOUR.sub("", text), multiline=True))


def without_commands(text: str) -> str:
    """Return a text in which the runner of a CI finds no command; for one that holds this package's own colours."""
    if "::" not in text and "##" not in text:
        return text
    return _COMMAND.sub(lambda found: f"{found[1]}\\x3a" if found[1] is not None else "\\x23", text)


def json_text(value: object) -> str:
    """Return indented JSON for a terminal or a log: hidden characters and commands are escapes of JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if not text.isascii() or "\x7f" in text:
        text = "".join(char if char == "\n" or _is_visible(char) else json.dumps(char)[1:-1] for char in text)
        text = text.replace("\x7f", "\\u007f")
    return text.replace("##", "#\\u0023")


def clip(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters, else its start and the number of characters left out."""
    if len(text) <= limit:
        return text
    tail = f" ... [{len(text) - limit} characters left out]"
    return text[:limit] + tail


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters, else its start and more of its end around ``...``."""
    if len(text) <= width:
        return text
    start = max(0, width - 3) // 4
    end = max(0, width - 3 - start)
    return f"{text[:start]}...{text[len(text) - end :]}"


def plural(count: int, noun: str, several: str = "") -> str:
    """Return a count with its noun: ``1 layout``, ``2 layouts``, ``2 launches``."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"
