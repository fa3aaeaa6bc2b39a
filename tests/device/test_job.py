from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_nvfp4.contracts.group_gemm import GroupGemm
from pytest_nvfp4.device.call_plan import plan_calls
from pytest_nvfp4.device.job import Job, JobCase, KernelSpec, ProblemSpec, SourceFile
from pytest_nvfp4.device.result import Blob
from pytest_nvfp4.problem import GPUMODE, parse_shape


def spec(tmp_path: Path) -> KernelSpec:
    (tmp_path / "k.py").write_text("def custom_kernel(data): ...\n")
    return KernelSpec.from_files(tmp_path / "k.py", arch="sm_100a")[0]


def test_a_job_survives_json(tmp_path: Path) -> None:
    case = JobCase(problem=ProblemSpec.of(GPUMODE[0]), family="gpumode")
    job = Job(id="j", action="verify", kernel=spec(tmp_path), cases=(case,))
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert job.cases[0].problem.problem() == GPUMODE[0]


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"action": "destroy"},
        {"kernel": None},
        {"cases": []},
        {"deadline_s": 0},
        {"surprise": 1},
    ],
)
def test_a_malformed_job_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    case = JobCase(problem=ProblemSpec.of(GPUMODE[0]), family="gpumode")
    data = Job(id="j", action="verify", kernel=spec(tmp_path), cases=(case,)).model_dump()
    Job.model_validate(data)
    with pytest.raises(ValidationError):
        Job.model_validate({**data, **change})


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.py", "a/../../x.py", "", "a\\b.py"])
def test_a_source_file_stays_below_its_folder(path: str) -> None:
    import hashlib

    with pytest.raises(ValidationError, match="relative"):
        SourceFile(path=path, text="", sha256=hashlib.sha256(b"").hexdigest())


def test_a_source_file_is_what_its_hash_says() -> None:
    with pytest.raises(ValidationError, match="hash"):
        SourceFile(path="k.py", text="x", sha256="0" * 64)


def test_files_in_other_encodings_are_packed_as_they_are(tmp_path: Path) -> None:
    data = "# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1")
    (tmp_path / "k.py").write_bytes(data)
    kernel, base = KernelSpec.from_files(tmp_path / "k.py", arch="sm_90a")
    again = KernelSpec.model_validate_json(kernel.model_dump_json())
    assert again.files[0].data == data
    assert base == tmp_path


def test_packages_and_helpers_are_packed_with_their_folders(tmp_path: Path) -> None:
    package = tmp_path / "pkg" / "sub"
    package.mkdir(parents=True)
    for path in (tmp_path / "pkg" / "__init__.py", package / "__init__.py", package / "k.py", tmp_path / "helper.py"):
        path.write_text("")
    kernel, base = KernelSpec.from_files(package / "k.py", others=[tmp_path / "helper.py"], arch="sm_100a")
    assert base == tmp_path
    assert kernel.main == "pkg/sub/k.py"
    assert [file.path for file in kernel.files] == [
        "helper.py",
        "pkg/__init__.py",
        "pkg/sub/__init__.py",
        "pkg/sub/k.py",
    ]
    assert kernel.sha256 != KernelSpec.from_files(package / "k.py", arch="sm_100a")[0].sha256


def test_imported_modules_are_packed_by_default(tmp_path: Path) -> None:
    folder, root = tmp_path / "own", tmp_path / "common"
    for place in (folder, root):
        place.mkdir()
    (folder / "k.py").write_text("import json\n\nimport tiles\n")
    (folder / "tiles.py").write_text("from shared import layout\n")
    (folder / "unused.py").write_text("")
    (root / "shared.py").write_text("layout = 1\n")

    def packed(**options: Any) -> list[str]:
        kernel, _ = KernelSpec.from_files(folder / "k.py", arch="sm_100a", **options)
        return [file.path for file in kernel.files]

    assert packed() == ["k.py", "tiles.py"]
    assert packed(roots=[root]) == ["common/shared.py", "own/k.py", "own/tiles.py"]
    assert packed(others=()) == ["k.py"]


class TestBlob:
    def test_inline_bytes_come_back(self) -> None:
        blob = Blob.inlined(b"x" * 1000)
        assert Blob.model_validate_json(blob.model_dump_json()).read(None, source="C", most=1000) == b"x" * 1000

    def test_changed_bytes_are_noticed(self, tmp_path: Path) -> None:
        blob = Blob(sha256=Blob.inlined(b"abc").sha256, size=3, file="c.bin")
        (tmp_path / "c.bin").write_bytes(b"abc")
        assert blob.read(tmp_path, source="C", most=3) == b"abc"
        (tmp_path / "c.bin").write_bytes(b"abd")
        with pytest.raises(ValueError, match="hash"):
            blob.read(tmp_path, source="C", most=3)

    @pytest.mark.parametrize("name", ["/etc/passwd", "../x"])
    def test_files_elsewhere_are_refused(self, name: str) -> None:
        with pytest.raises(ValidationError, match="below"):
            Blob(sha256="0" * 64, size=0, file=name)

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "secret").write_bytes(b"s")
        (tmp_path / "c.bin").symlink_to(tmp_path / "secret")
        with pytest.raises(ValueError, match="links are not followed"):
            Blob(sha256=Blob.inlined(b"s").sha256, size=1, file="c.bin").read(tmp_path, source="C", most=1)

    def test_a_bomb_is_not_unpacked(self) -> None:
        blob = Blob.inlined(bytes(10_000_000)).model_copy(update={"size": 10})
        with pytest.raises(ValueError, match="more than 10 bytes"):
            blob.read(None, source="C", most=10)

    def test_a_size_that_was_not_asked_is_refused_before_it_is_read(self) -> None:
        for blob in (Blob.inlined(b"x").model_copy(update={"size": 4 << 30}), Blob.inlined(bytes(9))):
            with pytest.raises(ValueError, match="and 8 are expected"):
                blob.read(None, source="C", most=8)


class TestPlan:
    cases = tuple(
        JobCase(problem=ProblemSpec.of(problem), family=f) for problem in GPUMODE[:3] for f in ("a", "b", "c")
    )

    def test_every_case_is_called_and_some_twice(self) -> None:
        for seed in range(20):
            calls = [call.case for call in plan_calls(self.cases, seed) if call.other_sizes is None]
            assert set(calls) == set(range(9))
            assert 12 <= len(calls) <= 21

    @pytest.mark.parametrize("cases", [cases, cases[:1], cases[:2], (cases[0], cases[3], cases[6])])
    def test_each_list_of_sizes_is_called_again_in_every_way(self, cases: tuple[JobCase, ...]) -> None:
        for seed in range(50):
            plan = plan_calls(cases, seed)
            for sizes in {case.problem.sizes for case in cases}:
                positions = [
                    position
                    for position, call in enumerate(plan)
                    if call.other_sizes is None and cases[call.case].problem.sizes == sizes
                ]
                calls = [plan[position] for position in positions]
                (changed,) = (position for position in positions if plan[position].changed)
                assert plan[changed - 1].case == plan[changed].case, "it follows the call whose contents it changes"
                owner = plan[changed].reuse
                assert owner in (changed - 1, plan[changed - 1].reuse)
                assert not calls[0].offset
                (moved,) = (call for call in calls if call.offset)
                assert moved.reuse is None
                before = plan[: positions[0]]
                assert any((call.other_sizes or cases[call.case].problem.sizes) != sizes for call in before)
                assert len(plan[0].other_sizes or ()) == 1
                assert any(len(call.other_sizes or ()) == len(sizes) for call in before)
                assert not any(call.other_sizes == sizes for call in before)

    def test_with_a_side_stream_each_list_of_sizes_is_called_once_more(self) -> None:
        plan = plan_calls(self.cases, 4, side_stream=True)
        assert sorted(call.case // 3 for call in plan if call.side_stream) == [0, 1, 2]
        assert not any(call.side_stream for call in plan_calls(self.cases, 4))

    def test_memory_is_reused_only_for_equal_sizes(self) -> None:
        for seed in range(20):
            plan = plan_calls(self.cases, seed)
            for position, call in enumerate(plan):
                if call.reuse is not None:
                    assert call.reuse < position
                    owner = plan[call.reuse]
                    assert owner.reuse is None
                    assert owner.other_sizes is None
                    assert self.cases[owner.case].problem.sizes == self.cases[call.case].problem.sizes

    def test_seeds_give_different_orders_and_the_same_seed_the_same(self) -> None:
        orders = {tuple(call.case for call in plan_calls(self.cases, seed)) for seed in range(10)}
        assert len(orders) == 10
        assert plan_calls(self.cases, 3) == plan_calls(self.cases, 3)

    def test_other_sizes_are_new_and_made_of_the_sizes(self) -> None:
        sizes = ProblemSpec.of(parse_shape("96x128x512,0x256x256,40x256x512")).sizes
        small, smaller = ((20, 128, 256, 1),) * 3, ((10, 128, 256, 1),) * 3
        assert GroupGemm().other_sizes(sizes, groups=3, taken={sizes}) == small
        assert GroupGemm().other_sizes(small, groups=3, taken={small}) == smaller
        assert GroupGemm().other_sizes(small, groups=3, taken={small, smaller}) == ((40, 128, 256, 1),) * 3
        one = ((1, 128, 256, 1),)
        assert GroupGemm().other_sizes(one, groups=1, taken={one}) == ((2, 128, 256, 1),)
        assert GroupGemm().other_sizes(sizes, groups=1, taken={sizes}) == small[:1]

    def test_groups_without_rows_have_no_other_sizes(self) -> None:
        sizes = ProblemSpec.of(parse_shape("0x128x256")).sizes
        assert GroupGemm().other_sizes(sizes, groups=1, taken={sizes}) is None
        assert plan_calls((JobCase(problem=ProblemSpec.of(parse_shape("0x128x256")), family="a"),), 1)
