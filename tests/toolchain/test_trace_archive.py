"""Archives of traces: equal bytes for equal traces, paths of the reader, and nothing read that does not fit."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_nvfp4.isolation.door import DoorError
from pytest_nvfp4.toolchain import trace_archive
from pytest_nvfp4.toolchain.trace import Artifact, Trace, Value


def made(folder: Path) -> Trace:
    """A trace of a kernel in ``folder``, whose PTX names the kernel's file."""
    kernel = folder / "k.py"
    ptx = f'.file 1 "{kernel}"\n'.encode()
    (folder / "artifacts").mkdir(parents=True)
    (folder / "artifacts" / "0.ptx").write_bytes(ptx)
    return Trace(
        kernel=str(kernel),
        entry=None,
        problem="p",
        problem_sizes=((1, 128, 256, 1),),
        arch="sm_100a",
        options=(),
        dsl_version="4.8.1",
        python="3.11",
        ok=True,
        values=(Value(name="go.x", type='!cute.layout<"1:0">', file=str(kernel), line=3),),
        launches=(),
        launch_count=0,
        code=(),
        artifacts=(Artifact(kind="ptx", name="0.ptx", sha256=hashlib.sha256(ptx).hexdigest()),),
        findings=(),
        dependencies={str(kernel): "a" * 64, "/elsewhere/library.py": "b" * 64},
        others={"/home/me/secret": "1:2"},
        stages={},
        seconds=1.0,
        folder=str(folder / "artifacts"),
    )


def test_there_and_back(tmp_path: Path) -> None:
    packed = [trace_archive.pack(made(tmp_path / name), base=tmp_path / name) for name in ("one", "two")]
    assert packed[0] == packed[1], "nothing of the machine is in it"
    for word in (b"/home/me", b"elsewhere", str(tmp_path).encode()):
        assert all(word not in zipfile.ZipFile(io.BytesIO(packed[0])).read(name) for name in ("trace.json", "0.ptx"))
    base, into = tmp_path / "mine", tmp_path / "into"
    into.mkdir()
    trace = trace_archive.unpack(packed[0], source="it", base=base, into=into)
    assert trace.kernel == trace.values[0].file == str(base / "k.py")
    assert trace.dependencies == {str(base / "k.py"): "a" * 64}
    (path,) = trace.artifact_paths("ptx")
    assert path.read_text() == f'.file 1 "{base / "k.py"}"\n'
    assert hashlib.sha256(path.read_bytes()).hexdigest() == trace.artifacts[0].sha256


def changed(data: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return packed.getvalue()


def _trace(entries: dict[str, bytes], **fields: object) -> None:
    entries["trace.json"] = json.dumps({**json.loads(entries["trace.json"]), **fields}).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda entries: entries.update({"../x.ptx": b""}), "an entry '../x.ptx'"),
        (lambda entries: entries.update({"1.ptx": b""}), "does not have the artifacts that it lists"),
        (lambda entries: entries.update({"0.ptx": b"other"}), "does not match its hash"),
        (lambda entries: entries.pop("0.ptx"), "does not have the artifacts"),
        (lambda entries: entries.pop("trace.json"), "has no trace.json"),
        (lambda entries: entries.update({"trace.json": b"{"}), "it"),
        (lambda entries: _trace(entries, seconds=float("nan")), "it"),
        (lambda entries: _trace(entries, launch_count="many"), "launch_count"),
        (lambda entries: entries.update({"0.ptx": b"\0" * 5000}), "more than 4096 bytes"),
    ],
)
def test_what_is_refused(
    change: Callable[[dict[str, bytes]], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = trace_archive.pack(made(tmp_path / "one"), base=tmp_path / "one")
    monkeypatch.setattr(trace_archive, "MOST_BYTES", 4096)
    (tmp_path / "into").mkdir()
    with pytest.raises(DoorError, match="it") as caught:
        trace_archive.unpack(changed(good, change), source="it", base=tmp_path, into=tmp_path / "into")
    assert said in str(caught.value)
    assert not list((tmp_path / "into").iterdir()) or "hash" in said


def test_what_is_no_zip(tmp_path: Path) -> None:
    good = trace_archive.pack(made(tmp_path / "one"), base=tmp_path / "one")
    for data in (b"", b"PK\3\4", good[:-30], good[:40] + b"\xff" * 40 + good[80:]):
        with pytest.raises(DoorError, match="it"):
            trace_archive.unpack(data, source="it", base=tmp_path, into=tmp_path)
