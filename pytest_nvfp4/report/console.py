"""The terminal that text is rendered for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TABLE_WIDTH = 100
"""Width in columns below which a table would fold every cell; plain lines are then easier to read."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """Properties of a terminal, or of a pipe or log in its place.

    Attributes:
        width: Width in columns.
        color: Whether it shows ANSI colours.
        ascii_only: Whether lines of tables are drawn in ASCII.
    """

    width: int = 80
    color: bool = False
    ascii_only: bool = False

    @property
    def wide(self) -> bool:
        """Whether tables with folded cells suit it better than plain lines."""
        return self.color and self.width >= TABLE_WIDTH

    def render(self, draw: Callable[[Console], None]) -> str:
        """Return what ``draw`` prints to a console of this width, with ANSI colours."""
        from rich.console import Console

        out = StringIO()
        draw(
            Console(
                file=out,
                width=self.width,
                force_terminal=True,
                color_system="standard",
                markup=False,
                highlight=False,
                emoji=False,
                legacy_windows=False,
            )
        )
        return out.getvalue()

    def table(self) -> Table:
        """Return an empty table as wide as the terminal, with a line below its heading only."""
        from rich import box
        from rich.table import Table

        lines = box.ASCII2 if self.ascii_only else box.SIMPLE_HEAD
        return Table(box=lines, expand=True, show_edge=False, pad_edge=False)


PLAIN = Terminal()
"""A pipe or a log."""


def markdown_text(source: str, terminal: Terminal) -> str:
    """Render Markdown for a terminal, with colours and styles if it has them."""
    from rich.console import Console
    from rich.markdown import Markdown

    text = Markdown(source, hyperlinks=False)
    if terminal.color:
        return terminal.render(lambda console: console.print(text))
    console = Console(file=StringIO(), width=terminal.width, color_system=None)
    with console.capture() as captured:
        console.print(text)
    return captured.get()
