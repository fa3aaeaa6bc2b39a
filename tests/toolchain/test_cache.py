"""The cache of traces gives back what its parent stored, byte for byte, or nothing."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.toolchain.cache import TraceCache, file_hash, take_files
from pytest_nvfp4.toolchain.cache_contents import clear_traces
from pytest_nvfp4.toolchain.trace import Artifact, Trace

KEY, OTHER = "aa" + "0" * 30, "bb" + "0" * 30
COMPILED = "compiled-0123456789abcdef"
MODULE = f"{COMPILED}/{'a' * 40}"
FILES = {
    "0.ptx": b".version 8.8",
    "0.cubin": bytes(range(256)),
    f"{MODULE}/module.mlirbc": b"lowered",
    f"{MODULE}/manifest.json": b"{}",
    f"{MODULE}/cutlass_go.ptx": b".version 8.8",
}


def a_trace(*, ok: bool = True, session: str | None = None) -> Trace:
    """A trace of nothing, with artifacts."""
    return Trace(
        kernel="/k.py",
        entry=None,
        problem="p",
        problem_sizes=(),
        arch="sm_100a",
        options=(),
        dsl_version="4.8.1",
        python="3.11",
        ok=ok,
        values=(),
        launches=(),
        launch_count=0,
        code=(),
        artifacts=(
            Artifact(kind="ptx", name="0.ptx", sha256="0" * 64),
            Artifact(kind="cubin", name="0.cubin", sha256="0" * 64),
        ),
        findings=(),
        dependencies={},
        stages={},
        seconds=0.0,
        session=session,
    )


def put(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def stored(root: Path, *, session: str | None = None, ok: bool = True) -> tuple[TraceCache, Path]:
    """A cache with one trace, and the folder of its entry."""
    cache = TraceCache(root / "cache")
    trace = cache.store(KEY, a_trace(session=session, ok=ok), put(root / "built", FILES))
    return cache, Path(trace.folder or "")


def test_what_was_stored_comes_back(tmp_path: Path) -> None:
    cache, entry = stored(tmp_path)
    trace = cache.load(KEY, session=None)
    assert trace is not None
    assert [path.read_bytes() for path in trace.artifact_paths("ptx")] == [FILES["0.ptx"]]
    assert cache.copy_compiled(KEY, COMPILED, into=tmp_path / "copies")
    copies = {path.name: path.read_bytes() for path in (tmp_path / "copies").glob("*/*")}
    assert copies == {name.rpartition("/")[2]: data for name, data in FILES.items() if "/" in name}
    assert not cache.copy_compiled(KEY, "compiled-fedcba9876543210", into=tmp_path / "others")
    assert cache.load(OTHER, session=None) is None
    assert sorted(path.relative_to(entry).as_posix() for path in entry.rglob("*") if path.is_file()) == sorted(
        [*FILES, "trace.json"]
    )
    assert not cache.sealed.refused


def test_a_copy_for_a_worker_is_no_way_into_the_cache(tmp_path: Path) -> None:
    cache, entry = stored(tmp_path)
    assert cache.copy_compiled(KEY, COMPILED, into=tmp_path / "copies")
    for copy in (tmp_path / "copies").glob("*/*"):
        with copy.open("ab") as file:
            file.write(b"changed")
    for built in (tmp_path / "built").rglob("*.*"):
        if built.is_file():
            with built.open("ab") as file:
                file.write(b"changed")
    assert {name: (entry / name).read_bytes() for name in FILES} == FILES


class TestBuiltExtensions:
    """Extensions come back for the kernel whose worker wrote them, and for no other one."""

    KERNEL, ANOTHER = "cc" + "0" * 30, "dd" + "0" * 30
    EXTENSION = f"{COMPILED}/{'b' * 40}"

    def cache(self, root: Path, *, session: str | None = None, dependency: Path | None = None) -> TraceCache:
        """A cache with a trace that has a lowered module and an extension."""
        cache = TraceCache(root / "cache")
        built = {**FILES, f"{self.EXTENSION}/read.json": b"{}", f"{self.EXTENSION}/x.so": b"library"}
        depends = {} if dependency is None else {str(dependency): file_hash(dependency)}
        trace = a_trace(ok=False, session=session).model_copy(update={"dependencies": depends})
        cache.store(KEY, trace, put(root / "built", built))
        cache.record_builder(self.KERNEL, KEY)
        return cache

    def copied(self, cache: TraceCache, into: Path, kernel: str = KERNEL, **how: Any) -> int | None:
        """What is copied for a worker of a kernel."""
        return cache.copy_built(kernel, COMPILED, into=into, **{"session": None, "fresh": False, **how})

    def test_of_a_kernel_they_come_back_without_its_lowered_modules(self, tmp_path: Path) -> None:
        cache = self.cache(tmp_path)
        assert self.copied(cache, tmp_path / "copies") == 2
        files = {path.relative_to(tmp_path / "copies").as_posix() for path in (tmp_path / "copies").glob("*/*")}
        assert files == {f"{'b' * 40}/read.json", f"{'b' * 40}/x.so"}

    def test_another_kernel_gets_none(self, tmp_path: Path) -> None:
        cache = self.cache(tmp_path)
        builders = cache.sealed.folder / "builders"
        assert self.copied(cache, tmp_path / "copies", self.ANOTHER) is None
        shutil.copyfile(builders / self.KERNEL, builders / self.ANOTHER)
        assert self.copied(cache, tmp_path / "copies", self.ANOTHER) is None
        assert [entry.file for entry in cache.sealed.refused] == [str(builders / self.ANOTHER)]
        assert not (tmp_path / "copies").exists()

    def test_a_changed_dependency_or_library_ends_them(self, tmp_path: Path) -> None:
        module = tmp_path / "helper.py"
        module.write_text("x = 1\n")
        cache = self.cache(tmp_path, dependency=module)
        assert self.copied(cache, tmp_path / "copies") == 2
        module.write_text("x = 2\n")
        assert self.copied(cache, tmp_path / "others") is None
        module.write_text("x = 1\n")
        (cache.sealed.folder / f"traces/{KEY[:2]}/{KEY}/{self.EXTENSION}/x.so").write_bytes(b"Library")
        assert self.copied(cache, tmp_path / "others") is None
        assert not list((tmp_path / "others").rglob("*.so"))

    def test_a_fresh_run_takes_those_of_its_own_only(self, tmp_path: Path) -> None:
        cache = self.cache(tmp_path, session="one")
        assert self.copied(cache, tmp_path / "a", session="two", fresh=True) is None
        assert self.copied(cache, tmp_path / "b", session="one", fresh=True) == 2
        nameless = self.cache(tmp_path / "nameless")
        assert self.copied(nameless, tmp_path / "c", fresh=True) is None
        assert self.copied(nameless, tmp_path / "c") == 2

    def test_a_removed_trace_ends_them(self, tmp_path: Path) -> None:
        cache = self.cache(tmp_path)
        assert clear_traces(cache.root) == 1
        assert self.copied(cache, tmp_path / "copies") is None


@settings(max_examples=40)
@given(st.data())
def test_no_damaged_trace_is_accepted(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache, entry = stored(Path(folder))
        name = data.draw(st.sampled_from(["trace.json", *FILES]))
        whole = (entry / name).read_bytes()
        at = data.draw(st.integers(0, len(whole) - 1))
        flip = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
        damaged = data.draw(st.sampled_from([whole[:at], whole[:at] + flip + whole[at + 1 :], whole + flip, None]))
        (entry / name).unlink()
        if damaged is not None:
            (entry / name).write_bytes(damaged)
        if "/" in name:
            assert not cache.copy_compiled(KEY, COMPILED, into=Path(folder, "copies"))
        else:
            assert cache.load(KEY, session=None) is None
        missing = name == "trace.json" and damaged is None
        assert len(cache.sealed.refused) == (not missing)
        assert missing or not entry.exists()


@pytest.mark.parametrize("how", ["copied", "linked", "swapped", "pipe", "another folder"])
def test_an_entry_of_another_trace_is_refused(tmp_path: Path, how: str) -> None:
    cache, entry = stored(tmp_path)
    other = entry.parent.parent / "bb" / OTHER
    other.parent.mkdir()
    match how:
        case "copied":
            shutil.copytree(entry, other)
        case "linked":
            other.symlink_to(entry)
        case "swapped":  # its own description with the files of another
            cache.store(OTHER, a_trace(), put(tmp_path / "new", {"0.ptx": b"x", "0.cubin": b"y"}))
            shutil.copyfile(entry / "0.ptx", other / "0.ptx")
        case "pipe":
            cache.store(OTHER, a_trace(), put(tmp_path / "new", FILES))
            (other / "0.ptx").unlink()
            os.mkfifo(other / "0.ptx")
        case "another folder":
            shutil.copytree(stored(tmp_path / "there")[1], other)
    assert cache.load(OTHER, session=None) is None
    (refused,) = cache.sealed.refused
    assert refused.file == str(other)
    assert not other.exists()
    assert cache.load(KEY, session=None) is not None


@pytest.mark.parametrize("how", ["file", "pipe", "link", "folder"])
@pytest.mark.parametrize("what", ["", "key", "key.lock", "traces", "traces/aa", f"traces/aa/{KEY}", "locks", "builds"])
def test_whatever_lies_in_the_way_is_replaced(tmp_path: Path, what: str, how: str) -> None:
    cache, _ = stored(tmp_path)
    place = cache.sealed.folder / what
    with contextlib.suppress(FileNotFoundError):
        place.rename(tmp_path / "aside")
    match how:
        case "file":
            place.write_text("x")
        case "pipe":
            os.mkfifo(place)
        case "link":
            place.symlink_to(tmp_path / "nowhere")
        case "folder":
            (place / "inside").mkdir(parents=True)
    cache = TraceCache(tmp_path / "cache")
    cache.load(KEY, session=None)
    with cache.locked(KEY):
        cache.store(KEY, a_trace(), put(tmp_path / "built", FILES))
    assert cache.load(KEY, session=None) is not None
    assert not (tmp_path / "nowhere").exists()


def test_a_fresh_run_takes_traces_of_its_own_only(tmp_path: Path) -> None:
    cache, _ = stored(tmp_path, session="one")
    assert cache.load(KEY, session="one", fresh=True) is not None
    assert cache.load(KEY, session="two", fresh=True) is None
    assert cache.load(KEY, session=None, fresh=True) is None
    assert cache.load(KEY, session=None) is not None
    cache, _ = stored(tmp_path / "b")
    assert cache.load(KEY, session=None, fresh=True) is None


@pytest.mark.parametrize("what", ["link", "pipe", "huge", "folder"])
def test_what_no_compiler_writes_is_not_taken(tmp_path: Path, what: str) -> None:
    folder = put(tmp_path / "written", {"1.ptx": b"x"})
    match what:
        case "link":
            (folder / "0.ptx").symlink_to("/etc/passwd")
        case "pipe":
            os.mkfifo(folder / "0.ptx")
        case "huge":
            with (folder / "0.ptx").open("wb") as file:
                file.truncate(3 << 30)
        case "folder":
            (folder / "0.ptx").mkdir()
    with pytest.raises(DoorError, match=r"^the artifact '0\.ptx' "):
        take_files(folder, tmp_path / "into", artifacts=re.compile(r".*\.ptx"))


def test_other_files_of_a_worker_are_not_opened(tmp_path: Path) -> None:
    files = {"0.ptx": b"x", "notes.txt": b"y", f"{MODULE}/run.sh": b"z", "compiled-1/a/b.ptx": b"z"}
    folder = put(tmp_path / "written", files)
    os.mkfifo(folder / "pipe")
    (folder / "compiled-ffffffffffffffff").symlink_to("/")
    assert take_files(folder, tmp_path / "into") == {"0.ptx": b"x"}
    assert [path.name for path in (tmp_path / "into").rglob("*")] == ["0.ptx"]
