"""Notifications by a command of the user's, at promotions and at the end. What it does has no effect on the loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pytest_nvfp4.isolation.cancellation import StoppedError
from pytest_nvfp4.isolation.run import run
from pytest_nvfp4.loop.configuration.config import Event, NotifySection
from pytest_nvfp4.loop.work.template import CommandTemplate
from pytest_nvfp4.text import clip, visible

_KEYS = ("event", "title", "text")
_TITLE_CHARACTERS, _TEXT_CHARACTERS, _OUTPUT_CHARACTERS = 200, 4000, 300


class CommandNotifier:
    """Starts the user's command for an event, without a shell, and waits for its end.

    Args:
        section: The configuration.
        root: Folder in which the command runs.
        log: Called with a line if a notification fails.

    Raises:
        ConfigError: The command has an unknown key.
    """

    def __init__(self, section: NotifySection, *, root: Path, log: Callable[[str], None]) -> None:
        self._section, self._root, self._log = section, root, log
        self._command = (
            CommandTemplate(section.command, keys=_KEYS, option="notify.command") if section.command else None
        )

    def __call__(self, event: Event, *, title: str, text: str) -> None:
        """Notify the user, if a command is configured for the event. Raises StoppedError: the loop is stopped."""
        if self._command is None or event not in self._section.events:
            return
        values = {
            "event": event,
            "title": _safe(title, most=_TITLE_CHARACTERS).replace("\n", " "),
            "text": _safe(text, most=_TEXT_CHARACTERS),
        }
        try:
            # The user's own command gets the user's own environment, in which the key of its service may be.
            end = run(
                self._command.filled(values),
                cwd=self._root,
                deadline_s=self._section.timeout_s,
                environ=os.environ,
                output_bytes=1 << 16,
            )
        except StoppedError:
            raise
        except Exception as error:  # whatever it is, the loop goes on
            self._log(f"the notification of {event} failed: {type(error).__name__}: {error}")
            return
        if end.timed_out or end.returncode:
            said = visible(end.stderr.text.strip()[-_OUTPUT_CHARACTERS:])
            what = f"{self._command.program} {end.describe_end()}"
            self._log(f"the notification of {event} failed: {what}{said and f': {said}'}")


def _safe(text: str, *, most: int) -> str:
    """Return a text as an argument: bounded, without control characters, and no option or name of a file.

    Programs read what begins with ``-`` as an option, and some, as curl, what begins with ``@`` as a file to send.
    """
    shown = clip(visible(text.strip(), multiline=True), most)
    return shown if shown[:1].isalnum() else f" {shown}"
