"""From a module to its snapshots' folder and back, wherever pytest starts, and names that a file system can hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.plugin.places import Places, folder_of, owner_of, safe_name

from .conftest import Project

ROOT = Path("/project")
SNAPSHOTS = ROOT / "snapshots"


def folder(module: str, *, root: Path = ROOT) -> Path:
    return folder_of(Path(module), root=root, snapshots=root / "snapshots")


def owner(file: str, *, root: Path = ROOT) -> Path | None:
    return owner_of(Path(file), root=root, snapshots=root / "snapshots")


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("/project/tests/test_x.py", "/project/snapshots/tests/test_x"),
        ("/project/k.py", "/project/snapshots/k"),
        ("/project/kernels/gemm.v2.py", "/project/snapshots/kernels/gemm.v2"),
        ("/project/README.md", "/project/snapshots/README.md"),
        ("/elsewhere/k.py", "/elsewhere/snapshots/k"),
    ],
)
def test_the_folder_of_a_module(module: str, expected: str) -> None:
    assert folder(module) == Path(expected)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/project/snapshots/tests/test_x/test_a.txt", "/project/tests/test_x.py"),
        ("/project/snapshots/kernels/gemm.v2/layouts.txt", "/project/kernels/gemm.v2.py"),
        ("/project/snapshots/loose.txt", None),
        ("/elsewhere/snapshots/k/layouts.txt", None),
    ],
)
def test_the_owner_of_a_file(file: str, expected: str | None) -> None:
    assert owner(file) == (None if expected is None else Path(expected))


def test_a_module_that_is_not_a_py_file_owns_its_folder(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    place = folder(str(tmp_path / "README.md"), root=tmp_path)
    assert owner(str(place / "doc.txt"), root=tmp_path) == tmp_path / "README.md"


def test_a_module_belongs_to_its_project_where_pytest_has_no_root_for_it(tmp_path: Path) -> None:
    for folder in ("mine/.git", "mine/kernels", "theirs", "theirs/deep", "bare"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "theirs/pyproject.toml").write_text("[tool.pytest_nvfp4]\n")
    roots = {"mine/kernels/k.py": "mine", "theirs/deep/k.py": "theirs", "bare/k.py": "bare", "bare/gone/k.py": "bare"}
    unconfigured, configured = Places(None, Path("s")), Places(tmp_path / "mine", Path("s"))
    for module, root in roots.items():
        assert unconfigured.root_of(tmp_path / module) == configured.root_of(tmp_path / module) == tmp_path / root
    assert Places(tmp_path, Path("s")).root_of(tmp_path / "theirs/deep/k.py") == tmp_path, "configured above all"
    assert unconfigured.of_module(tmp_path / "mine/kernels/k.py") == tmp_path / "mine/s/kernels/k"


@pytest.mark.slow
@pytest.mark.parametrize("configured", [True, False], ids=["with configuration", "without"])
def test_snapshots_are_the_same_wherever_pytest_starts(
    project: Project, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...], configured: bool
) -> None:
    (project.path / "pyproject.toml").unlink()
    project.kernel("mine/kernels/k.py", problems=("gpumode-1",))
    project.kernel("theirs/k.py")
    project.file("mine/pyproject.toml", "[tool.pytest.ini_options]\n" if configured else "")
    problem = '[[tool.pytest_nvfp4.kernel]]\npath = "kernels/*.py"\nproblems = ["gpumode-1"]\n'
    with (project.path / "mine/pyproject.toml").open("a") as stream:
        stream.write(problem)
    (project.path / "theirs/.git").mkdir()
    both = ("mine/kernels/k.py", "theirs/k.py")
    project.run(*both, "--snapshot-update", *workers).outcomes(passed=8)
    for start, *names in (
        (".", *both),
        (".", both[0]),
        (".", both[1]),
        ("mine", "kernels/k.py"),
        ("mine/kernels", "k.py", "../../theirs/k.py"),
        ("theirs", "k.py"),
    ):
        monkeypatch.chdir(project.path / start)
        project.run(*names, *workers).outcomes(passed=4 * len(names))
    folders = {path.parent.relative_to(project.path).as_posix() for path in project.path.rglob("layouts*.txt")}
    assert folders == {"mine/snapshots/kernels/k", "theirs/snapshots/k"}
    text = (project.path / "mine/snapshots/kernels/k/layouts[gpumode-1].txt").read_text()
    assert "\n# kernel   kernels/k.py\n" in text, "relative to the project"
    monkeypatch.chdir(project.path)
    stale = project.file("mine/snapshots/kernels/k/layouts[gone].txt", text)
    kept = project.file("theirs/snapshots/other/layouts[gone].txt", text)
    ran = project.run(*both, *workers)
    assert "nvfp4: 1 unused snapshots" in ran.text
    assert "snapshots/kernels/k/layouts[gone].txt" in ran.text
    assert project.run(*both, "--snapshot-update", *workers).code == 0
    assert (stale.exists(), kept.exists()) == (False, True), "a module that the run did not name keeps its snapshots"


PARTS = st.text("abz.-_ é[]1", min_size=1, max_size=8).filter(
    lambda part: part.strip(".") != "" and part != "snapshots"
)


@given(st.lists(PARTS, min_size=1, max_size=4))
def test_the_owner_of_what_lies_in_a_modules_folder_is_the_module(parts: list[str]) -> None:
    module = ROOT.joinpath(*parts[:-1], f"{parts[-1]}.py")
    assert (
        owner_of(folder_of(module, root=ROOT, snapshots=SNAPSHOTS) / "x.txt", root=ROOT, snapshots=SNAPSHOTS) == module
    )


def test_both_names_of_a_linked_module_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "k.py").touch()
    (tmp_path / "link").symlink_to("real")
    assert folder(str(tmp_path / "link" / "k.py"), root=tmp_path) == tmp_path / "snapshots" / "real" / "k"


def test_a_link_out_of_the_root_keeps_its_snapshots_in_the_root(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "k.py").touch()
    (root / "link").symlink_to(outside)
    assert folder(str(root / "link" / "k.py"), root=root) == root / "snapshots" / "link" / "k"


@pytest.mark.parametrize(
    "name", ["layouts[gpumode-0]", "test_a[x y]", "TestA.test_b", "test_ü", "compile[2cta-96x128x256]"]
)
def test_a_name_that_a_file_can_have_stays(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize("name", ["test_a[a/b]", "test_a[a:b]", "test_a[\x1b[31m]", "test_a[\u202e]", "test_a[\udc80]"])
def test_a_name_that_a_file_cannot_have_is_replaced(name: str) -> None:
    safe = safe_name(name)
    assert safe != name
    assert safe.isprintable()
    assert not set(safe) & set('\\/?*:|"<>')


@given(st.text(max_size=400), st.text(max_size=400))
def test_other_texts_have_other_names_that_fit(one: str, other: str) -> None:
    assert len(safe_name(one).encode()) <= 220
    assert (safe_name(one) == safe_name(other)) == (one == other)


def test_texts_that_differ_only_in_what_is_replaced_or_cut_off_have_other_names() -> None:
    assert len({safe_name("a/b"), safe_name("a_b"), safe_name("a:b")}) == 3
    assert safe_name("x" * 300) != safe_name("x" * 301)
