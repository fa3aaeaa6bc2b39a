from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.toolchain.source import read_source, syntax_problem


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "k.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "def custom_kernel(data):\n    pass\n",
        "async def custom_kernel (data): ...\n",
        "custom_kernel = lambda data: data\n",
        "custom_kernel: object = print\n",
        "from elsewhere import custom_kernel\n",
        "from elsewhere import other as custom_kernel\n",
        "if True:\n    def custom_kernel(data): ...\n",
        "try:\n    import x\nexcept ImportError:\n    custom_kernel = None\n",
        '"""Docs."""\n\ndef custom_kernel(data): ...\n',
    ],
)
def test_a_contract_is_found(tmp_path: Path, text: str) -> None:
    source = read_source(write(tmp_path, text))
    assert source is not None
    assert source.defines_contract


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def other(): ...\n",
        "# def custom_kernel(data)\nimport cutlass\n",
        "import cutlass\nclass A:\n    def custom_kernel(self): ...\n",
        'import cutlass\nSOURCE = """\ndef custom_kernel(data):\n    pass\n"""\n',
        "import cutlass\nSOURCE = '''\ncustom_kernel = 1\n'''\n",
        "import cutlass\ncustom_kernel == 1\n",
        "import cutlass\ndef custom_kernel_2(data): ...\n",
    ],
)
def test_what_only_looks_like_one_is_not(tmp_path: Path, text: str) -> None:
    source = read_source(write(tmp_path, text))
    assert source is None or not source.defines_contract


def test_users_of_the_dsl_are_known_with_their_functions(tmp_path: Path) -> None:
    source = read_source(
        write(tmp_path, "def f():\n    import cutlass.cute as cute\n\nclass TestIt: ...\ndef test_a(): ...\n")
    )
    assert source is not None
    assert source.mentions_dsl
    assert source.functions == ("f", "test_a", "TestIt")
    assert read_source(write(tmp_path, "import cutlassic\nfrom .cutlass import x\n")) is None


def test_the_file_is_not_run(tmp_path: Path) -> None:
    path = write(tmp_path, "raise SystemExit\ndef custom_kernel(data): ...\n")
    source = read_source(path)
    assert source is not None
    assert source.defines_contract


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path, "import cutlass\n")
    assert read_source(path) is not None
    path.write_text("import nothing_of_the_kind\n")
    assert read_source(path) is None


@pytest.mark.parametrize("data", [b"\xff\xfe cutlass \x00", b"\x00" * 100 + b"cutlass"])
def test_files_that_are_not_text_are_no_kernels(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "k.py"
    path.write_bytes(data)
    assert read_source(path) is None
    assert syntax_problem(path) is not None


def test_missing_files_are_no_kernels(tmp_path: Path) -> None:
    assert read_source(tmp_path / "none.py") is None


def test_syntax_is_checked_with_line_and_text(tmp_path: Path) -> None:
    problem = syntax_problem(write(tmp_path, "x = 1\ndef f(:\n    pass\n"))
    assert problem is not None
    assert (problem.line, problem.text) == (2, "def f(:")
    assert syntax_problem(write(tmp_path, "x = 1\n")) is None


def test_a_comment_that_cannot_be_decoded_is_a_problem(tmp_path: Path) -> None:
    """Python imports such a file; DSL and simulator cannot read its source."""
    path = tmp_path / "k.py"
    path.write_bytes(b"x = 1\ny = 2  # caf\xe9\n")
    problem = syntax_problem(path)
    assert problem is not None
    assert problem.message == "byte 0xe9 is not utf-8; save the file as UTF-8, or declare its coding"
    assert (problem.line, problem.text) == (2, "y = 2  # caf\N{REPLACEMENT CHARACTER}")
    path.write_bytes(b"# caf\xe9\nx = 1\n")
    first = syntax_problem(path)
    assert first is not None
    assert first.line == 1
    path.write_bytes(b"# coding: latin-1\ny = 2  # caf\xe9\n")
    assert syntax_problem(path) is None
    path.write_bytes("\N{BOM}y = 2  # caf\N{LATIN SMALL LETTER E WITH ACUTE}\n".encode())
    assert syntax_problem(path) is None


def test_kernels_with_other_encodings_are_python(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\ndef custom_kernel(d): ...\n".encode("latin-1"))
    assert syntax_problem(path) is None
    source = read_source(path)
    assert source is not None
    assert source.defines_contract
