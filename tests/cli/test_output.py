"""Writing results: files whole or not at all, tables, sizes."""

import pytest

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError


def test_a_file_is_replaced_whole(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    output.write_file(path, "new \ud800")
    assert path.read_bytes() == b"new \\ud800"

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(InputError, match=r"file\.txt cannot be written: No space left on device"):
        output.write_file(path, "newer")
    assert path.read_bytes() == b"new \\ud800"
    assert [one.name for one in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (1 << 42, "4096.0 GiB")]
)
def test_sizes(count, text) -> None:
    assert output.size_text(count) == text


def test_a_table_keeps_every_character(monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    cell = "x" * 500
    output.write_table((("name", 1), ("value", 3), ("n", None)), [("a\x1b[31m", cell, "7")])
    shown = capsys.readouterr().out
    assert shown.count("x") == 500 + shown.count("\\x1b")
    assert "\x1b[31m" not in shown


def test_tables_are_for_wide_terminals_with_colour(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    assert output.wants_table()
    monkeypatch.setenv("COLUMNS", "80")
    assert not output.wants_table()
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.wants_table()
