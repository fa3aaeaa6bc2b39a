"""What a worker may change: patterns, what no pattern can allow, and the comparison of a checkout with what it was."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.loop.work import policy as policies
from pytest_nvfp4.loop.work import tree
from pytest_nvfp4.loop.work.policy import Changes, Policy, of_settings

KERNEL = "kernels/k.py"
FILES = {
    KERNEL: "A = 1\n",
    "kernels/helper.py": "B = 1\n",
    "kernels/deep/x.py": "C = 1\n",
    "tests/test_k.py": "",
    "conftest.py": "",
    "pyproject.toml": "",
    "run.sh": "true\n",
}


def none(_paths: Collection[str]) -> Collection[str]:
    """Ignore nothing."""
    return []


class Checkout:
    """A checkout of which the content is known."""

    def __init__(self, top: Path) -> None:
        self.top = top
        for name, text in FILES.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(text)
        (top / "link").symlink_to("run.sh")
        (top / "run.sh").chmod(0o755)
        (top / ".git").mkdir()
        self.descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        self.before = tree.take(self.descriptor, most=1000, most_bytes=1 << 20)

    def changes(self, *may_change: str, ignored: Callable[[Collection[str]], Collection[str]] | None = None) -> Changes:
        policy = Policy(KERNEL, may_change, files=self.before)
        return policies.changes(policy, self.before, self.descriptor, ignored=ignored or none)


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    made = Checkout(tmp_path)
    yield made
    os.close(made.descriptor)


def test_nothing_has_changed(checkout: Checkout) -> None:
    (checkout.top / ".git" / "config").write_text("its own repository is not looked at")
    (checkout.top / "empty").mkdir()
    os.utime(checkout.top / KERNEL, (1, 1))
    assert checkout.changes() == Changes({}, {KERNEL: b"A = 1\n"}, ())


def test_the_kernel_may_change(checkout: Checkout) -> None:
    (checkout.top / KERNEL).write_text("A = 2\n")
    assert checkout.changes().files == {KERNEL: b"A = 2\n"}


ACTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another file": (lambda top: (top / "kernels/helper.py").write_text("B = 2\n"), "kernels/helper.py is changed"),
    "longer": (lambda top: (top / "conftest.py").write_text("x"), "conftest.py is changed"),
    "removed": (lambda top: (top / "pyproject.toml").unlink(), "pyproject.toml is gone"),
    "accepted finding": (
        lambda top: (top / "pyproject.toml").write_text('[[tool.pytest_nvfp4.accepted]]\nkind = "race"\n'),
        "pyproject.toml is changed",
    ),
    "kernel removed": (lambda top: (top / KERNEL).unlink(), f"{KERNEL} is gone"),
    "new": (lambda top: (top / "new.txt").write_text(""), "new.txt is a file that was not there"),
    "new link": (lambda top: (top / "to").symlink_to("/etc"), "to is a link that was not there"),
    "new pipe": (lambda top: os.mkfifo(top / "fifo"), "fifo is a pipe that was not there"),
    "other mode": (lambda top: (top / "run.sh").chmod(0o644), "run.sh has another mode"),
    "other link": (
        lambda top: ((top / "link").unlink(), (top / "link").symlink_to("fun.sh")),
        "link is changed",
    ),
    "file for a link": (
        lambda top: ((top / "link").unlink(), (top / "link").write_text("run.sh")),
        "link is changed",
    ),
    "link for a file": (
        lambda top: ((top / "run.sh").unlink(), (top / "run.sh").symlink_to("/bin/x")),
        "run.sh is changed",
    ),
    "pipe for a file": (lambda top: ((top / "run.sh").unlink(), os.mkfifo(top / "run.sh")), "run.sh is a pipe now"),
    "folder for a file": (lambda top: ((top / "run.sh").unlink(), (top / "run.sh").mkdir()), "run.sh is gone"),
    "kernel a link": (
        lambda top: ((top / KERNEL).unlink(), (top / KERNEL).symlink_to("helper.py")),
        f"{KERNEL} is a link, and not a file",
    ),
    "kernel a pipe": (
        lambda top: ((top / KERNEL).unlink(), os.mkfifo(top / KERNEL)),
        f"{KERNEL} is a pipe, and not a file",
    ),
    "kernel a folder": (lambda top: ((top / KERNEL).unlink(), (top / KERNEL).mkdir()), f"{KERNEL} is gone"),
    "kernel a hard link": (
        lambda top: ((top / KERNEL).unlink(), os.link(top / "run.sh", top / KERNEL)),
        f"{KERNEL} is a hard link, and links are not followed",
    ),
    "kernel of 2 GB": (
        lambda top: os.truncate(top / KERNEL, 2 << 30),
        f"{KERNEL} has {2 << 30} bytes, and at most {policies.MOST_FILE_BYTES} are read",
    ),
    "other case": (lambda top: (top / KERNEL).rename(top / "kernels/K.py"), f"{KERNEL} is gone"),
    "a repository": (
        lambda top: ((top / "sub/.git").mkdir(parents=True), (top / "sub/.git/config").write_text("")),
        "sub/.git/config is a file that was not there",
    ),
    "name that is no text": (
        lambda top: Path(os.fsdecode(os.fsencode(top) + b"/\xff\x1b[31m")).write_text(""),
        "\\udcff\\x1b[31m is a file that was not there",
    ),
}


@pytest.mark.parametrize("name", ACTS)
def test_any_other_change_is_a_violation(checkout: Checkout, name: str) -> None:
    act, message = ACTS[name]
    act(checkout.top)
    found = checkout.changes()
    assert message in found.violations


def test_a_socket_is_a_violation(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout.top)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s")
    assert checkout.changes().violations == ("s is a socket that was not there",)


def test_ignored_files_are_no_violations_but_repositories_are_never_ignored(checkout: Checkout) -> None:
    for name in ("a.log", "kept.txt", ".GIT/config"):
        (checkout.top / name).parent.mkdir(exist_ok=True)
        (checkout.top / name).write_text("")
    asked: list[str] = []

    def ignored(paths: Collection[str]) -> Collection[str]:
        asked.extend(paths)
        return [path for path in paths if path != "kept.txt"]

    found = checkout.changes(ignored=ignored).violations
    assert sorted(found) == [".GIT/config is a file that was not there", "kept.txt is a file that was not there"]
    assert sorted(asked) == ["a.log", "kept.txt"]


def test_everything_removed_and_everything_new_is_bounded(checkout: Checkout) -> None:
    for number in range(500):
        (checkout.top / f"{number}.txt").write_text("")
    found = checkout.changes().violations
    assert len(found) == 51
    assert found[-1] == "and 450 more changes"


def test_too_many_and_too_deep(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    place = checkout.top
    for _ in range(70):
        place = place / "d"
        place.mkdir()
    assert checkout.changes().violations == ("the worktree holds folders deeper than 64 levels",)
    monkeypatch.setattr(policies, "MOST_ENTRIES", 5)
    assert checkout.changes().violations == ("the worktree holds more than 5 files and folders",)


def test_a_checkout_that_was_replaced_is_the_one_that_was_opened(checkout: Checkout, tmp_path: Path) -> None:
    (checkout.top / KERNEL).write_text("A = 2\n")
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    checkout.top.rename(moved)
    checkout.top.symlink_to("/etc")
    found = checkout.changes()
    checkout.top.unlink()
    moved.rename(checkout.top)
    assert (dict(found.files), found.violations) == ({KERNEL: b"A = 2\n"}, ())


def test_a_file_that_changes_while_it_is_read_is_refused(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.read
    at = (checkout.top / KERNEL).stat().st_ino

    def racing(descriptor: int, size: int) -> bytes:
        data = read(descriptor, size)
        if os.fstat(descriptor).st_ino == at and data:
            (checkout.top / KERNEL).write_text("A = 9\n")
        return data

    monkeypatch.setattr(os, "read", racing)
    assert checkout.changes().violations == (f"{KERNEL} was changed while it was read",)


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("kernels/*.py", ["kernels/helper.py", "kernels/new.py"], ["kernels/deep/x.py", "kernels/a.txt", "x.py"]),
        ("kernels/deep/", ["kernels/deep/x.py", "kernels/deep/a/b"], ["kernels/deep", "kernels/helper.py"]),
        ("kernels/**", ["kernels/deep/x.py", "kernels/helper.py"], ["kernel/x.py"]),
        ("kernels/**/x.py", ["kernels/x.py", "kernels/deep/x.py", "kernels/a/b/x.py"], ["kernels/deep/y.py"]),
        ("./kernels/helpe?.py", ["kernels/helper.py"], ["kernels/helpe/.py", "kernels/helper.pyc"]),
        ("kernels/[ab].py", ["kernels/a.py"], ["kernels/[ab].py", "kernels/c.py"]),
    ],
)
def test_patterns(pattern: str, allowed: list[str], refused: list[str]) -> None:
    policy = Policy(KERNEL, [pattern], files=[KERNEL])
    assert [name for name in allowed if not policy.allows(name)] == []
    assert [name for name in refused if policy.allows(name)] == []


FORBIDDEN = """
    ** *.py * */*.py **/*.toml tests tests/ tests/** Tests/x conftest.py kernels/conftest.py pyproject.toml snapshots/**
    oracle/** .git/ .gitignore pytest_nvfp4/ kernels/**/test_*.py
""".split()  # noqa: SIM905 - a list of words


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_what_judges_a_candidate_can_never_be_allowed(pattern: str) -> None:
    files = [*FILES, "oracle/reference.py", "kernels/conftest.py"]
    with pytest.raises(ConfigError, match="is never changed by one"):
        Policy(KERNEL, [pattern], never=["oracle"], files=files)


@pytest.mark.parametrize("pattern", ["/etc/*", "../other/*", "kernels/../../x"])
def test_a_pattern_stays_below_the_repository(pattern: str) -> None:
    with pytest.raises(ConfigError, match="stay below it"):
        Policy(KERNEL, [pattern])


def test_a_pattern_allows_no_protected_file_that_comes_later() -> None:
    policy = Policy(KERNEL, ["kernels/**"], files=[KERNEL])
    for name in ("conftest.py", "test_x.py", "tests/x.py", ".gitattributes", "sitecustomize.py", "a/CONFTEST.PY"):
        assert not policy.allows(f"kernels/{name}"), name
    assert policy.allows("kernels/x.py")


def test_a_kernel_below_the_tests_may_change_and_its_neighbours_may_not() -> None:
    policy = Policy("tests/kernels/k.py", files=["tests/kernels/k.py"])
    assert policy.allows("tests/kernels/k.py")
    assert not policy.allows("tests/kernels/helper.py")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("kernels/Helper.py", "kernels/Helper.py differs from kernels/helper.py in case or composition only"),
        ("Kernels/x.py", "Kernels/x.py is new in a folder from which the judge's own process imports"),
        ("numpy.py", "numpy.py is new in a folder from which the judge's own process imports"),
        ("numpy/__init__.py", "numpy/__init__.py is new in a folder from which the judge's own process imports"),
        ("kernels/DEEP/x.py", "kernels/DEEP/x.py differs from kernels/deep/x.py in case or composition only"),
        ("kernels/fine.py", None),
        ("kernels/fine/x.py", None),
    ],
)
def test_new_files_that_could_stand_for_others(checkout: Checkout, name: str, problem: str | None) -> None:
    (checkout.top / name).parent.mkdir(exist_ok=True, parents=True)
    (checkout.top / name).write_text("x = 1\n")
    policy = Policy(KERNEL, ["kernels/*.py", "kernels/*/*.py", "numpy.py", "numpy/", "Kernels/"], files=FILES)
    found = policies.changes(policy, checkout.before, checkout.descriptor, ignored=none)
    assert found.violations == ((problem,) if problem else ())
    assert (name in found.files) == (problem is None)


@pytest.mark.parametrize("where", ["kernels/deep", "kernels/helper.py/x.py"])
def test_a_file_for_a_folder_and_a_folder_for_a_file_are_violations(checkout: Checkout, where: str) -> None:
    place = checkout.top / where
    if where.endswith("deep"):
        (place / "x.py").unlink()
        place.rmdir()
    else:
        place.parent.unlink()
        place.parent.mkdir()
    place.write_text("")
    found = checkout.changes("kernels/**")
    assert found.violations == (f"{where} is new where a folder or a file was, which git cannot hold together",)


def test_what_settings_name_is_protected() -> None:
    text = b'[tool.pytest.ini_options]\nnvfp4_snapshots = "shots"\npythonpath = "src lib"\n'
    assert of_settings(text) == (("shots",), ("src", "lib"))
    assert of_settings(b"[tool.pytest]\npythonpath = ['src']\n") == ((), ("src",))
    for broken in (b"", b"\xff", b"[tool", b"tool = 1", b"[tool.pytest]\nini_options = 1\n"):
        assert of_settings(broken) == ((), ())


def test_all_files_that_may_change_are_bounded_together(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "_MOST_BYTES", 10)
    (checkout.top / "kernels/large.py").write_text("x" * 9)
    found = checkout.changes("kernels/l*.py")
    assert found.violations == ("kernels/large.py has 9 bytes, and at most 4 are read",)
