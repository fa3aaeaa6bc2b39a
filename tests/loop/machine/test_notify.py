"""A notification starts the user's command without a shell; whatever the command does, the loop goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.loop.configuration.config import NotifySection
from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.loop.machine.notify import CommandNotifier

KEEP = "import json, os, sys; json.dump([sys.argv[1:], os.environ.get('NTFY_KEY')], open('out.json', 'w'))"


class Notified:
    """A notifier with a command, and the lines that it logs."""

    def __init__(self, folder: Path, *command: str, **section: object) -> None:
        self.folder, self.lines = folder, list[str]()
        values = NotifySection.model_validate({"command": command, **section})
        self.notify = CommandNotifier(values, root=folder, log=self.lines.append)

    def arguments(self) -> list[str] | None:
        """What the command was given."""
        path = self.folder / "out.json"
        return json.loads(path.read_text())[0] if path.exists() else None


def python(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


def test_the_command_gets_the_event(tmp_path: Path) -> None:
    made = Notified(tmp_path, *python(KEEP), "{event}", "--title={title}", "{text}", "{{text}}")
    made.notify("promoted", title="candidate 3", text="two\nlines")
    assert made.arguments() == ["promoted", "--title=candidate 3", "two\nlines", "{text}"]
    assert made.lines == []


def test_only_chosen_events_start_it(tmp_path: Path) -> None:
    made = Notified(tmp_path, *python(KEEP), events=("stopped",))
    made.notify("promoted", title="t", text="x")
    assert made.arguments() is None
    made.notify("stopped", title="t", text="x")
    assert made.arguments() == []


def test_without_a_command_nothing_happens(tmp_path: Path) -> None:
    made = Notified(tmp_path)
    made.notify("stopped", title="t", text="x")
    assert made.lines == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("$(touch x); `id` | rm {title}", " $(touch x); `id` | rm {title}"),
        ("--output=/etc/passwd", " --output=/etc/passwd"),
        ("@/etc/passwd", " @/etc/passwd"),
        ("a\0b\x1b[2J", "a\\x00b\\x1b[2J"),
        ("", " "),
    ],
)
def test_a_text_is_an_argument_and_nothing_else(tmp_path: Path, text: str, shown: str) -> None:
    made = Notified(tmp_path, *python(KEEP), "{text}")
    made.notify("stopped", title="t", text=text)
    assert made.arguments() == [shown]
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_text_is_bounded(tmp_path: Path) -> None:
    made = Notified(tmp_path, *python(KEEP), "{text}", "{title}")
    made.notify("stopped", title="t" * 10_000_000, text="x" * 10_000_000)
    given = made.arguments()
    assert given is not None
    assert max(map(len, given)) < 5000


def test_the_command_has_the_environment_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NTFY_KEY", "secret")
    Notified(tmp_path, *python(KEEP)).notify("stopped", title="t", text="x")
    assert json.loads((tmp_path / "out.json").read_text())[1] == "secret"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (python("import sys; sys.exit('no\\x1b network')"), "exited with status 1: no\\x1b network"),
        (("/no/such/program",), "FileNotFoundError"),
        (python("import os; os.kill(os.getpid(), 9)"), "SIGKILL"),
        (python("print('x' * 10_000_000, file=__import__('sys').stderr); raise SystemExit(3)"), "status 3"),
    ],
)
def test_a_failure_is_logged_and_has_no_effect(tmp_path: Path, command: tuple[str, ...], expected: str) -> None:
    made = Notified(tmp_path, *command)
    made.notify("stopped", title="t", text="x")
    (line,) = made.lines
    assert line.startswith("the notification of stopped failed: ")
    assert expected in line
    assert len(line) < 2000
    assert "\x1b" not in line


def test_a_command_that_never_ends_is_ended(tmp_path: Path) -> None:
    made = Notified(tmp_path, *python("import time; time.sleep(1000)"), timeout_s=0.2)
    made.notify("stopped", title="t", text="x")
    assert "did not finish within its deadline" in made.lines[0]


def test_an_unknown_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"notify\.command has the unknown key \{txt\}"):
        Notified(tmp_path, "send", "{txt}")
