"""Writing results: complete files, formats, sizes."""

import pytest

from pytest_nvfp4.cli import output
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.report.document import Document
from pytest_nvfp4.report.render import OutputFormat


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


def test_colour_is_for_terminals_without_no_color(monkeypatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.coloured()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.coloured()


def test_a_result_goes_to_its_files(tmp_path, capsys) -> None:
    text, page = tmp_path / "result.txt", tmp_path / "page.html"
    document = Document("A <title>", ["one line"])
    output.ResultWriter(OutputFormat.TEXT, text, page).write(document)
    assert text.read_text() == "one line\n"
    assert "<h1>A &lt;title&gt;</h1>" in page.read_text()
    assert capsys.readouterr().out == ""


def test_two_formats_are_refused(cli, tmp_path) -> None:
    done = cli("snapshot", "show", tmp_path / "none", "--json", "--format", "html")
    assert done.code == 2
    assert "--json and --format html name different formats" in done.err
    assert "no such file" in cli("snapshot", "show", tmp_path / "none", "--json", "--format", "json").err
