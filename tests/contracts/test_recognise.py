from __future__ import annotations

import pytest

from pytest_nvfp4.contracts.recognise import VALUES, contradiction, recognise

GEMM_TEXT = '"""C = A B^T; c: [m, n, l]."""\n'
GEMV_TEXT = '"""C = A b; c: [m, 1, l]."""\n'


def kernel(body: str, *, before: str = "", argument: str = "data") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{before}import torch\n\n\ndef custom_kernel({argument}):\n{lines}"


SEVEN = "a, b, _, _, sfa, sfb, c = data\nreturn c"
TEN = "a, b1, b2, _, _, _, sfa, sfb1, sfb2, c = data\nreturn c"
FOUR = "abc, _, scales, sizes = data\nreturn [c for _, _, c in abc]"
RECOGNISED = {
    "four values": (kernel(FOUR), "nvfp4_group_gemm"),
    "ten values": (kernel(TEN), "nvfp4_dual_gemm"),
    "ten values over lines": (kernel("(a, b1, b2, _, _, _,\n sfa, sfb1, sfb2, c) = data\nreturn c"), "nvfp4_dual_gemm"),
    "another name": (kernel(TEN.replace("data", "given"), argument="given"), "nvfp4_dual_gemm"),
    "an annotation": (kernel(TEN, argument="data: input_t"), "nvfp4_dual_gemm"),
    "indices": (kernel("return run(data[0], data[1], data[2], data[6], data[8], data[9])"), "nvfp4_dual_gemm"),
    "handed on": (
        kernel("return run(data)") + f"\ndef run(data):\n    {SEVEN.splitlines()[0]}\n# gemv\n",
        "nvfp4_gemv",
    ),
    "c is a matrix": (kernel(SEVEN, before=GEMM_TEXT), "nvfp4_gemm"),
    "c is a vector": (kernel(SEVEN, before=GEMV_TEXT), "nvfp4_gemv"),
    "the word gemm": (kernel(SEVEN.replace("return c", "return torch.ops.mine.gemm(a, b, c)")), "nvfp4_gemm"),
    "the word gemv": (kernel(SEVEN.replace("return c", "return torch.ops.mine.gemv(a, b, c)")), "nvfp4_gemv"),
    "what C is before words": (kernel(SEVEN, before=GEMV_TEXT + "# faster than a gemm\n"), "nvfp4_gemv"),
    "the last index": (kernel("return module.run(data[0], data[6])", before="# gemv\n"), "nvfp4_gemv"),
    "a directive": (kernel(SEVEN, before="#!POPCORN leaderboard nvfp4_gemv\n#!POPCORN gpu B200\n"), "nvfp4_gemv"),
    "a directive alone": (
        kernel("return module.run(*data)", before="#!POPCORN leaderboard nvfp4_gemm\n"),
        "nvfp4_gemm",
    ),
    "another machine's": (kernel(TEN, before="#!POPCORN leaderboard modal_nvfp4_dual_gemm\n"), "nvfp4_dual_gemm"),
    "a directive of no Python": ("#!POPCORN leaderboard nvfp4_gemm\ndef custom_kernel(data:\n", "nvfp4_gemm"),
}


@pytest.mark.parametrize("case", RECOGNISED)
def test_tasks_are_recognised(case: str) -> None:
    text, contract = RECOGNISED[case]
    found = recognise(text)
    assert (found.contract, found.problem) == (contract, "")
    assert found.why
    assert contradiction(text, contract) is None


@pytest.mark.parametrize("other", VALUES)
@pytest.mark.parametrize("case", [name for name in RECOGNISED if "word" not in name and "matrix" not in name])
def test_other_contracts_are_contradicted(case: str, other: str) -> None:
    text, contract = RECOGNISED[case]
    same_values = VALUES[other] == VALUES[contract] and "directive" not in case
    said = contradiction(text, other)
    assert (said is None) == (other == contract or same_values)
    assert said is None or f'set contract = "{contract}"' in said


def test_evidence_that_fits_several_tasks_is_a_problem() -> None:
    for text in (kernel(SEVEN), kernel(SEVEN, before=GEMM_TEXT + GEMV_TEXT + "# gemm, gemv\n")):
        found = recognise(text)
        assert found.contract is None
        assert found.problem == (
            f"fits nvfp4_gemm and nvfp4_gemv: custom_kernel takes 7 values from its argument "
            f"(line {text[: text.index('a, b,')].count(chr(10)) + 1}), as both give it"
        )
        assert contradiction(text, "nvfp4_gemm") is None


@pytest.mark.parametrize("count", [2, 3, 5, 11])
def test_evidence_that_fits_no_task_is_a_problem(count: int) -> None:
    names = ", ".join(f"t{index}" for index in range(count))
    found = recognise(kernel(f"{names} = data\nreturn t0"))
    assert found.contract is None
    assert f"fits none of GPU MODE's tasks: custom_kernel takes {count} values" in found.problem
    assert "nvfp4_gemm gives 7" in found.problem


def test_a_directive_and_a_call_that_contradict_each_other_are_a_problem() -> None:
    found = recognise(kernel(TEN, before="#!POPCORN leaderboard nvfp4_gemm\n"))
    assert found.contract is None
    assert "names the leaderboard nvfp4_gemm, but custom_kernel takes 10 values" in found.problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def custom_kernel(data:\n",
        kernel("return run(*data)"),
        kernel("a, *others = data\nreturn others"),
        kernel("return data[0], data[3]"),
        kernel("x, y, z = shape\nreturn data"),
        kernel(FOUR.replace("data", "other")),
        kernel("return data", before='"""nvfp4_gemm"""\n'),
        kernel("return data", before="#!POPCORN leaderboard grayscale\n"),
        "x = 1\n" * 2000 + "#!POPCORN leaderboard nvfp4_gemm\n",
    ],
)
def test_no_evidence_is_no_recognition(text: str) -> None:
    found = recognise(text)
    assert (found.contract, found.problem) == (None, "")
    assert all(contradiction(text, contract) is None for contract in VALUES)


def test_contracts_of_others_are_not_contradicted() -> None:
    assert contradiction(kernel(TEN), "mine.py::Mine") is None
