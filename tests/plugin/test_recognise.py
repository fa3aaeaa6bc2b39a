"""Which files are checked as kernels."""

from __future__ import annotations

import pytest

from .conftest import Project
from .sources import ENTRY, KERNEL

TEST = "\n\ndef test_ordinary():\n    pass\n"
HELPER = "import cutlass.cute as cute\n\n\n@cute.jit\ndef helper(x: cute.Tensor):\n    return x\n"
GLOB = 'nvfp4_kernels = ["kernels/**/*.py"]'
CHECKS = [f"{check}[gpumode-0]" for check in ("compile", "layouts", "launch", "codegen")]


def collected(project: Project, *args: str) -> list[str]:
    """Node ids that a run would have."""
    return [line for line in project.run("--collect-only", "-q", *args).text.splitlines() if "::" in line]


class TestNamedOnTheCommandLine:
    def test_a_kernel_under_the_contract(self, project: Project) -> None:
        project.file("k.py", KERNEL)
        assert collected(project, "k.py") == [f"k.py::{check}" for check in CHECKS]

    def test_a_file_that_is_no_kernel_stays_pytests(self, project: Project) -> None:
        project.file("plain.py", TEST)
        assert collected(project, "plain.py") == ["plain.py::test_ordinary"]

    def test_a_kernel_that_is_called_like_a_test_module(self, project: Project) -> None:
        project.file("test_gemm.py", KERNEL)
        assert collected(project, "test_gemm.py") == [f"test_gemm.py::{check}" for check in CHECKS]

    def test_a_test_module_that_defines_a_kernel_stays_pytests(self, project: Project) -> None:
        project.file("test_gemm.py", "def custom_kernel(data):\n    return data\n" + TEST)
        assert collected(project, "test_gemm.py") == ["test_gemm.py::test_ordinary"]

    def test_tests_in_a_kernel_file_are_not_lost(self, project: Project) -> None:
        project.file("k.py", "def custom_kernel(data):\n    return data\n" + TEST)
        assert collected(project, "k.py") == [*(f"k.py::{check}" for check in CHECKS), "k.py::test_ordinary"]

    def test_one_of_its_checks(self, project: Project) -> None:
        project.file("k.py", KERNEL)
        assert collected(project, "k.py::layouts[gpumode-0]") == ["k.py::layouts[gpumode-0]"]

    def test_without_the_contract_but_with_an_entry(self, project: Project) -> None:
        project.file("k.py", ENTRY)
        assert collected(project, "k.py", "--nvfp4-entry", "k.py::build") == [
            f"k.py::{check}" for check in ("compile", "layouts", "launch", "codegen")
        ]


class TestAFolder:
    def test_the_glob_of_the_ini_file_covers_kernels_in_it(self, project: Project) -> None:
        project.settings("", ini=GLOB)
        project.file("kernels/op/sm100.py", KERNEL)
        project.file("kernels/test_named.py", KERNEL)
        project.file("kernels/__init__.py", "custom_kernel = None\n")
        project.file("kernels/conftest.py", "custom_kernel = None\n")
        project.file("other/k.py", KERNEL)
        files = {node.split("::")[0] for node in collected(project)}
        assert files == {"kernels/op/sm100.py", "kernels/test_named.py"}

    def test_a_helper_of_the_kernels_is_no_kernel(self, project: Project) -> None:
        project.settings("", ini=GLOB)
        project.file("kernels/k.py", KERNEL)
        project.file("kernels/helper.py", HELPER)
        project.file("kernels/plain.py", "x = 1\n")
        assert {node.split("::")[0] for node in collected(project, "kernels")} == {"kernels/k.py"}

    def test_a_kernel_that_lacks_an_entry_is_not_passed_over(self, project: Project) -> None:
        project.settings("", ini=GLOB)
        project.file("kernels/k.py", ENTRY)
        assert "kernels/k.py::compile[gpumode-0]" in collected(project, "kernels")

    def test_tests_beside_kernels_are_tests(self, project: Project) -> None:
        project.settings("", ini=GLOB)
        project.file("kernels/k.py", KERNEL)
        project.file(
            "kernels/test_k.py", "# kernel.launch(\nimport pytest\nfrom pytest import mark as cutlass\n" + TEST
        )
        nodes = collected(project)
        assert "kernels/test_k.py::test_ordinary" in nodes
        assert len(nodes) == 1 + len(CHECKS)

    def test_without_settings_kernels_are_named_instead_of_checked(
        self, project: Project, workers: tuple[str, ...]
    ) -> None:
        project.file("kernels/k.py", KERNEL)
        ran = project.run("kernels", *workers)
        assert ran.code == pytest.ExitCode.NO_TESTS_COLLECTED
        assert "nvfp4: 1 file(s) define custom_kernel(data), such as kernels/k.py" in ran.text
        assert "nvfp4_kernels" in ran.text

    def test_a_named_file_without_a_kernel_is_told(self, project: Project, workers: tuple[str, ...]) -> None:
        project.file("kernels/k.py", KERNEL)
        project.file("kernels/plain.py", "x = 1\n")
        ran = project.run("kernels/plain.py", *workers)
        assert ran.code == pytest.ExitCode.NO_TESTS_COLLECTED
        assert "nvfp4: kernels/plain.py defines no custom_kernel(data) and imports no cutlass" in ran.text
        assert "kernels/k.py" not in ran.text, "nobody asked for it"

    def test_a_named_module_of_tests_without_a_test_is_pytests_own(self, project: Project) -> None:
        project.file("test_plain.py", "x = 1\n")
        assert "no kernel to check" not in project.run("test_plain.py").text

    def test_that_hint_is_for_kernels_only(self, project: Project) -> None:
        project.file("kernels/plain.py", "x = 1\n")
        assert "nvfp4:" not in project.run("kernels").text


class TestTables:
    def test_several_configurations_problems_and_an_entry(self, project: Project) -> None:
        project.settings(
            """
            [tool.pytest_nvfp4]
            problems.small = { m = [40, 96], n = 128, k = 256 }
            [[tool.pytest_nvfp4.kernel]]
            path = "k.py"
            problems = ["small", "gpumode-3"]
            [[tool.pytest_nvfp4.kernel]]
            path = "k.py"
            name = "wide"
            entry = "build.py::wide"
            """
        )
        project.file("k.py", KERNEL)
        labels = [node.removeprefix("k.py::") for node in collected(project, "-k", "layouts")]
        assert labels == ["layouts[small]", "layouts[gpumode-3]", "layouts[wide]"]

    def test_a_file_that_only_a_table_knows_is_collected(self, project: Project) -> None:
        project.settings('[[tool.pytest_nvfp4.kernel]]\npath = "odd/thing.py"\n')
        project.file("odd/thing.py", "x = 1\n")
        assert "odd/thing.py::compile[gpumode-0]" in collected(project)

    def test_the_glob_of_a_table_without_an_entry_leaves_helpers_alone(self, project: Project) -> None:
        project.settings('[[tool.pytest_nvfp4.kernel]]\npath = "kernels/*.py"\n')
        project.file("kernels/k.py", KERNEL)
        project.file("kernels/helper.py", HELPER)
        assert {node.split("::")[0] for node in collected(project)} == {"kernels/k.py"}

    def test_problems_of_the_command_line_replace_those_of_the_table(self, project: Project) -> None:
        project.settings('[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nproblems = ["gpumode"]\n')
        project.file("k.py", KERNEL)
        assert len(collected(project, "k.py")) == 10 * len(CHECKS)
        assert collected(project, "k.py", "--nvfp4-problem=96x128x256,40x128x256", "-k", "compile") == [
            "k.py::compile[96x128x256+40x128x256]"
        ]

    @pytest.mark.parametrize(
        ("tables", "said"),
        [
            ('path = "k.py"\n[[tool.pytest_nvfp4.kernel]]\npath = "*.py"\n', "give each its own `name`"),
            (
                'path = "k.py"\nname = "a"\nproblems = ["b-c"]\n[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\n'
                'name = "a-b"\nproblems = ["c"]\n',
                "would both be called [a-b-c]",
            ),
            ('path = "k.py"\nentry = "gone.py::build"\n', "gone.py, which does not exist"),
        ],
        ids=["same name", "same label", "no such entry"],
    )
    def test_a_table_that_cannot_be_used_is_one_failure(self, project: Project, tables: str, said: str) -> None:
        problems = "problems.c = { m = 96, n = 128, k = 256 }\nproblems.b-c = { m = 96, n = 128, k = 256 }\n"
        project.settings(f"[tool.pytest_nvfp4]\n{problems}[[tool.pytest_nvfp4.kernel]]\n{tables}")
        project.file("k.py", KERNEL)
        ran = project.run("k.py")
        ran.outcomes(failed=1, skipped=3)
        assert said in next(iter(ran.failures().values()))


class TestNoContract:
    @pytest.mark.parametrize("problem", ["gpumode-0", "gpumode"])
    def test_one_failure_says_what_to_do(self, project: Project, problem: str) -> None:
        project.file("k.py", ENTRY)
        ran = project.run("k.py", f"--nvfp4-problem={problem}")
        ran.outcomes(failed=1, skipped=3)
        text = ran.failures()["compile[gpumode-0]"]
        assert "k.py imports cutlass but defines no custom_kernel(data)" in text
        assert "pytest k.py --nvfp4-entry FILE::FUNCTION" in text

    def test_the_other_checks_say_it_too_when_they_are_alone(self, project: Project) -> None:
        project.file("k.py", ENTRY)
        ran = project.run("k.py::layouts[gpumode-0]")
        ran.outcomes(failed=1)
        assert "defines no custom_kernel(data)" in ran.failures()["layouts[gpumode-0]"]

    @pytest.mark.slow
    def test_other_configurations_of_the_file_are_checked(self, project: Project) -> None:
        project.settings(
            '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\n'
            '[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nname = "built"\nentry = "k.py::build"\n'
        )
        project.kernel(source=ENTRY, entry="build")
        project.run("k.py", "-k", "compile").outcomes(failed=1, passed=1, deselected=6)


class TestTasks:
    GEMV = "# C: [m, 1, l]\ndef custom_kernel(data):\n    a, b, _, _, sfa, sfb, c = data\n    return c\n"

    def test_a_task_is_recognised_and_has_its_own_problems(self, project: Project) -> None:
        project.file("k.py", self.GEMV)
        assert collected(project, "k.py") == [f"k.py::{check}" for check in CHECKS]
        named = collected(project, "k.py", "--nvfp4-problem=gpumode-9", "-k", "compile")
        assert named == ["k.py::compile[gpumode-9]"]
        ran = project.run("k.py", "--nvfp4-problem=128x128x256")
        assert "128x128x256 violates the contract nvfp4_gemv" in ran.text.replace("'", "")

    def test_one_failure_says_which_contract_to_set(self, project: Project) -> None:
        project.file("k.py", self.GEMV.partition("\n")[2])
        ran = project.run("k.py")
        ran.outcomes(failed=1, skipped=3)
        (text,) = ran.failures().values()
        assert "k.py fits nvfp4_gemm and nvfp4_gemv: custom_kernel takes 7 values from its argument (line 2)" in text
        assert 'contract = "nvfp4_gemm"' in text

    def test_a_kernel_under_the_wrong_contract_is_one_failure(self, project: Project) -> None:
        project.settings('[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\ncontract = "nvfp4_dual_gemm"\n')
        project.file("k.py", self.GEMV)
        ran = project.run("k.py")
        ran.outcomes(failed=1, skipped=3)
        (text,) = ran.failures().values()
        assert "k.py does not fit the contract nvfp4_dual_gemm: custom_kernel takes 7 values" in text
        assert 'set contract = "nvfp4_gemv"' in text
