"""The terminal view of a loop. It writes nothing but a request to stop, on a key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from pytest_nvfp4.cli.errors import Exit
from pytest_nvfp4.cli.loop import panes
from pytest_nvfp4.loop.state import Control, write_model
from pytest_nvfp4.loop.view.standing import Standing, standing_of
from pytest_nvfp4.loop.view.view import LoopReader, LoopView, diff_of, output_of

_PANES = ("now", "curve", "candidates", "findings", "log")
_MOST_OUTPUTS = 4


@dataclass(frozen=True, slots=True)
class Moment:
    """A view, what follows from it, and whose output, its file and its last lines."""

    view: LoopView
    standing: Standing
    outputs: tuple[tuple[str, str, tuple[str, ...]], ...]


def _sources(view: LoopView) -> Iterator[tuple[str, Path]]:
    """Yield whose output is shown, and the folder of its logs: the reviewer's, or that of the last few workers."""
    if view.state.phase == "RUN_REVIEWER":
        yield f"reviewer of iteration {view.state.iteration}", view.folder.iteration(view.state.iteration)
        return
    numbers = [each.number for each in view.active] or [each.number for each in view.candidates[-1:]]
    yield from ((f"candidate {number}", view.folder.candidate(number)) for number in numbers[-_MOST_OUTPUTS:])


class TextScreen(ModalScreen[None]):
    """A long text over the view."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,d,i", "dismiss(None)", "close")]
    DEFAULT_CSS = "TextScreen > VerticalScroll { background: $surface; }"

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Show the text."""
        with VerticalScroll():
            yield Static(self._text, id="text")
        yield Footer(show_command_palette=False)


class ConfirmScreen(ModalScreen[bool]):
    """A question that ``y`` answers with yes, and every other way out with no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,q", "dismiss(False)", "no"),
    ]
    DEFAULT_CSS = (
        "ConfirmScreen { align: center middle; } ConfirmScreen Static { width: 60; padding: 1 2; background: $error; }"
    )

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Show the question."""
        yield Static(f"{self._question}  [y/n]", id="question", markup=False)


class LoopApp(App[int]):
    """The view of a loop.

    A small terminal shows one pane at a time, a large one all of them.

    Args:
        reader: Reads the loop, which need not have begun.
        refresh_s: Seconds from one reading to the next.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "stop_after", "stop after iteration"),
        Binding("x", "stop_now", "stop now"),
        Binding("d", "diff", "diff"),
        Binding("i", "incumbent", "incumbent"),
        *(Binding(str(at), f"pane('{name}')", name, show=False) for at, name in enumerate(_PANES, 1)),
        Binding("q", "quit_view", "quit"),
        Binding("ctrl+c", "interrupt", "quit", show=False, priority=True),
    ]
    CSS = """
    #head { height: auto; max-height: 50%; padding: 0 1; }
    #tabs { height: 1; padding: 0 1; }
    .pane { padding: 0 1; display: none; }
    .pane.-active { display: block; }
    .-wide.-tall #tabs { display: none; }
    .-wide.-tall #panes { layout: grid; grid-size: 2 3; }
    .-wide.-tall .pane { display: block; border: round $primary; padding: 0; }
    .-wide.-tall #candidates { column-span: 2; }
    """

    def __init__(self, reader: LoopReader, *, refresh_s: float = 1.0) -> None:
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-short"), (40, "-tall")]
        self._reader, self._refresh_s = reader, refresh_s
        self._moment: Moment | None = None
        self._reading = False
        self._rows: dict[int, panes.Row] = {}

    def compose(self) -> ComposeResult:
        """Lay out the view."""
        yield Static("reads the directory of state", id="head")
        yield Static(id="tabs")
        with Container(id="panes"):
            for name in _PANES:
                if name == "candidates":
                    yield DataTable[Text](id=name, classes="pane", cursor_type="row", zebra_stripes=True)
                else:
                    with VerticalScroll(id=name, classes="pane"):
                        yield Static(id=f"{name}-text")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        table = self._table
        for name in panes.COLUMNS:
            table.add_column(name, key=name)
        for name in _PANES:
            self.query_one(f"#{name}").border_title = name
        self._activate(_PANES[0])
        self._read()
        self.set_interval(self._refresh_s, self._read)

    def on_resize(self) -> None:
        """Draw again for the new size."""
        self.call_after_refresh(self._draw)

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#candidates", DataTable)

    def _read(self) -> None:
        # A slow file system delays the next picture; it must not delay keys, or have two readers at once.
        if not self._reading:
            self._reading = True
            self._read_in_thread()

    @work(thread=True, group="reader")
    def _read_in_thread(self) -> None:
        try:
            view = self._reader.read()
            outputs = ((whose, *output_of(folder)) for whose, folder in _sources(view))
            self._moment = Moment(view, standing_of(view), tuple(each for each in outputs if each[1]))
        finally:
            self._reading = False
        self.call_from_thread(self._draw)

    def _draw(self) -> None:
        moment = self._moment
        if moment is None:
            return
        view, standing = moment.view, moment.standing
        self.query_one("#head", Static).update(panes.head(view, standing))
        size = {name: self.query_one(f"#{name}").size for name in _PANES}
        self._show("now", panes.now(view, moment.outputs, width=size["now"].width - 2, height=size["now"].height))
        self._show("curve", panes.history(standing, size["curve"].width - 2, size["curve"].height))
        self._show("findings", panes.findings(view))
        self._show("log", panes.log(view), follow=True)
        self._fill(view, standing)

    def _show(self, name: str, text: Text, *, follow: bool = False) -> None:
        pane = self.query_one(f"#{name}", VerticalScroll)
        at_end = pane.scroll_offset.y >= pane.max_scroll_y
        self.query_one(f"#{name}-text", Static).update(text)
        if follow and at_end:
            pane.scroll_end(animate=False)

    def _fill(self, view: LoopView, standing: Standing) -> None:
        table = self._table
        at_end = table.cursor_row >= table.row_count - 1
        for number, row in panes.rows(view, standing):
            old = self._rows.get(number)
            if old is None:
                table.add_row(*map(Text, row), key=str(number))
            elif old != row:
                for column, cell, before in zip(panes.COLUMNS, row, old, strict=True):
                    if cell != before:
                        table.update_cell(str(number), column, Text(cell), update_width=True)
            self._rows[number] = row
        if at_end and table.row_count:
            table.move_cursor(row=table.row_count - 1)

    # Keys

    def _activate(self, name: str) -> None:
        for each in _PANES:
            self.query_one(f"#{each}").set_class(each == name, "-active")
        text = Text()
        for at, each in enumerate(_PANES, 1):
            text.append(f" {at} {each} ", "reverse bold" if each == name else "dim")
        self.query_one("#tabs", Static).update(text)
        self.query_one(f"#{name}").focus()
        self.call_after_refresh(self._draw)

    def action_pane(self, name: str) -> None:
        """Show a pane."""
        self._activate(name)

    def action_stop_after(self) -> None:
        """Request a stop after this iteration."""
        self._request(Control(stop="after-iteration", reason="a key in nvfp4 loop watch"))

    def action_stop_now(self) -> None:
        """Request a stop now, after a question."""
        if self._runs():
            question = "Stop now? What is worked on ends; the loop can go on later."
            stop = Control(stop="now", reason="a key in nvfp4 loop watch")
            self.push_screen(ConfirmScreen(question), lambda yes: self._request(stop) if yes else None)

    def _runs(self) -> bool:
        if self._moment is not None and self._moment.view.life == "running":
            return True
        self.notify("no process runs this loop: there is nothing to stop", severity="warning", markup=False)
        return False

    def _request(self, control: Control) -> None:
        if not self._runs() or self._moment is None:
            return
        try:
            write_model(self._moment.view.folder.control, control)
        except OSError as error:
            self.notify(f"the request cannot be written: {error.strerror}", severity="error", markup=False)
            return
        self.notify("the request is written", markup=False)
        self._read()

    def action_diff(self) -> None:
        """Show the diff of the selected candidate."""
        table = self._table
        if self._moment is None or not table.row_count:
            self.notify("there is no candidate yet", severity="warning", markup=False)
            return
        number = list(self._rows)[table.cursor_row]
        self._show_diffs([(f"candidate {number}", number)])

    def action_incumbent(self) -> None:
        """Show the accepted steps that led to the incumbent."""
        steps = self._moment.standing.steps if self._moment is not None else ()
        if not steps:
            self.notify("nothing was accepted yet: the incumbent is the start", severity="warning", markup=False)
            return
        numbers = [each.promotion.candidate for each in steps]
        self._show_diffs([(f"step {at}: candidate {number}", number) for at, number in enumerate(numbers, 1)])

    def _show_diffs(self, parts: list[tuple[str, int]]) -> None:
        assert self._moment is not None
        known = {each.number: each for each in self._moment.view.candidates}
        text = Text()
        for title, number in parts:
            raw = diff_of(self._moment.view.folder, number)
            text.append(f"{title}\n", "bold reverse")
            if number in known:
                text.append_text(panes.details(known[number]))
            text.append_text(panes.diff(raw) if raw else Text("it has no diff\n", "dim"))
        self.push_screen(TextScreen(text))

    def action_quit_view(self) -> None:
        """End the view; the loop goes on."""
        self.exit(int(Exit.FINE))

    def action_interrupt(self) -> None:
        """End the view as Ctrl-C does."""
        self.exit(int(Exit.INTERRUPTED))
