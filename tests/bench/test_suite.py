"""Suites: those of this package, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.bench.suite import SuiteError, load_suite, parse_suite, shipped_suites
from pytest_nvfp4.problem import GPUMODE_BENCH, resolve

ROOT = Path(__file__).parents[2]
OPERATOR = '[[case]]\ncontract = "operator"\nkernel = "k.py"\ncall = "f"\nreference = "x"\nshapes = ["8x8"]\n'


def test_the_shipped_suites_name_kernels_and_functions_of_this_repository() -> None:
    assert shipped_suites() == ("gpumode", "reduce_sum_long", "reduce_sum_short", "smoke")
    for name in shipped_suites():
        for case in load_suite(name).case:
            if case.contract == "operator":
                assert case.kernel is not None
                assert f"\ndef {case.call}(x):" in (ROOT / case.kernel).read_text()
    sizes = {name: load_suite(f"reduce_sum_{name}").case[0].matrices for name in ("short", "long")}
    assert sizes["short"] == [(rows, n) for rows in (128, 512, 2048, 8192) for n in (1024, 2048, 4096, 8192)]
    assert sizes["long"] == [(rows, n) for rows in (64, 128, 256) for n in (16384, 32768, 65536, 131072)]
    assert resolve(load_suite("gpumode").case[0].problems) == GPUMODE_BENCH
    assert load_suite("smoke").takes_kernels


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OPERATOR + 'dtypes = ["float32", "int16"]\ntolerance = "1e-3 * x"\n')
    suite = load_suite(str(path))
    assert (suite.name, suite.file) == ("mine", path)
    assert not suite.takes_kernels
    assert suite.case[0].tolerance == "1e-3 * x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lacks case"),
        ("case = 3", "case = 3"),
        ("[[case]", "is not TOML"),
        ("a = " + "[" * 5000, "is not TOML"),
        ('name = "x"\n' + OPERATOR, "unknown field name"),
        (OPERATOR.replace("8x8", "8by8"), "'8by8' is not ROWSxCOLUMNS"),
        (OPERATOR.replace("8x8", "0x8"), "'0x8' is not ROWSxCOLUMNS"),
        (OPERATOR.replace("8x8", "99999999x99999999"), "2^32 elements"),
        (OPERATOR.replace('call = "f"\n', ""), "operator needs call"),
        (OPERATOR.replace('"f"', '"os.system"'), "call"),
        (OPERATOR + 'dtypes = ["float4"]', "float4"),
        (OPERATOR + "tolerance = nan", "tolerance"),
        (OPERATOR + "tolerance = -1", "tolerance"),
        (OPERATOR + 'problems = ["gpumode-0"]', "operator has no problems"),
        ("[[case]]\n", "gpumode needs problems"),
        ('[[case]]\nproblems = ["gpumode-0"]\ndtypes = ["int16"]', "gpumode has no dtypes"),
        ('[[case]]\nproblems = ["gpumode-0"]\ncolour = 1', "unknown field case.0.colour"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SuiteError) as caught:
        load_suite(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_names_and_files_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="give one of gpumode, reduce_sum_long"):
        load_suite("smokes")
    with pytest.raises(SuiteError, match="No such file"):
        load_suite(str(tmp_path / "missing.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(SuiteError, match=r"folder\.toml"):
        load_suite(str(tmp_path / "folder.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(SuiteError, match="UTF-8"):
        load_suite(str(tmp_path / "binary.toml"))
    with pytest.raises(SuiteError, match="the text"):
        parse_suite("case = []", name="x", source="the text")
