from __future__ import annotations

from pathlib import Path

import pytest

from pytest_nvfp4.settings import KernelSettings, SettingsError, load
from tests.contracts.test_recognise import GEMV_TEXT, SEVEN, TEN, kernel

FOUR = "abc, _, scales, sizes = data\nreturn [c for _, _, c in abc]"


def settings_of(folder: Path, text: str, *, table: str = "", entry: bool = False) -> KernelSettings:
    (folder / "pyproject.toml").write_text(f"[tool.pytest_nvfp4]\n{table}", encoding="utf-8")
    path = folder / "k.py"
    path.write_text(text, encoding="utf-8")
    (found,) = load(folder).for_kernel(path, entry=entry)
    return found


def contracts_of(settings: KernelSettings) -> set[str]:
    every = (settings.problems, settings.verify, settings.simulate, settings.benchmark, settings.model)
    return {problem.contract for problems in every for problem in problems or ()}


def test_a_recognised_kernel_has_its_contract(tmp_path: Path) -> None:
    found = settings_of(tmp_path, kernel(TEN))
    assert found.contract == "nvfp4_dual_gemm"
    assert found.kernel_contract.tests[0].sizes == [(1536, 512, 7168, 1)]
    assert contracts_of(found) == set()
    assert found.on_fitted_problem


def test_a_contract_that_is_set_is_that_of_an_ambiguous_file(tmp_path: Path) -> None:
    for name in ("nvfp4_gemm", "nvfp4_gemv"):
        found = settings_of(tmp_path, kernel(SEVEN), table=f'contract = "{name}"\nverify-problems = ["gpumode-0"]\n')
        assert found.contract == name
        assert contracts_of(found) == {name}


def test_a_contract_that_is_set_wrongly_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match="does not fit the contract nvfp4_gemm: custom_kernel takes 10 values"
    ) as raised:
        settings_of(tmp_path, kernel(TEN), table='contract = "nvfp4_gemm"\n')
    assert 'set contract = "nvfp4_dual_gemm"' in str(raised.value)


def test_names_of_problems_are_those_of_the_recognised_contract(tmp_path: Path) -> None:
    table = (
        'default-problems = ["gpumode-1"]\nbenchmark-problems = ["gpumode-bench"]\n'
        'verify-problems = ["tall", "gpumode"]\n'
        "problems.tall = { m = 512, n = 1, k = 128 }\n"
    )
    found = settings_of(tmp_path, kernel(SEVEN, before=GEMV_TEXT), table=table)
    assert contracts_of(found) == {"nvfp4_gemv"}
    assert found.problems is not None
    assert found.verify is not None
    assert found.problems[0].sizes == [(128, 1, 1536, 1)]
    assert (512, 1, 128, 1) in [problem.sizes[0] for problem in found.verify]
    assert found.benchmark is not None
    assert len(found.benchmark) == 3
    assert len(found.verify) == 11


def test_a_kernel_of_groups_and_a_file_without_evidence_keep_their_settings(tmp_path: Path) -> None:
    for text in (kernel(FOUR), kernel("return run(*data)"), "x = 1\n"):
        assert settings_of(tmp_path, text) == load(tmp_path).default


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (kernel(SEVEN), "k.py fits nvfp4_gemm and nvfp4_gemv"),
        (kernel("a, b, c = data\nreturn c"), "k.py fits none of GPU MODE's tasks"),
        (kernel(TEN, before="#!POPCORN leaderboard nvfp4_gemv\n"), "k.py names the leaderboard nvfp4_gemv, but"),
    ],
)
def test_what_fits_several_or_none_is_an_error_that_shows_the_setting(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says) as raised:
        settings_of(tmp_path, text)
    assert 'path = "k.py"\n    contract = "nvfp4_' in str(raised.value)
    assert settings_of(tmp_path, text, entry=True) == load(tmp_path).default


def test_a_kernel_with_an_entry_is_not_recognised(tmp_path: Path) -> None:
    table = '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nentry = "k.py::build"\n'
    assert contracts_of(settings_of(tmp_path, kernel(SEVEN), table=table)) == set()


def test_problems_that_the_contract_lacks_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is a kernel of nvfp4_gemv: no problem is called 'gpumode-bench-3'"):
        settings_of(tmp_path, kernel(SEVEN, before=GEMV_TEXT), table='benchmark-problems = ["gpumode-bench-3"]\n')
