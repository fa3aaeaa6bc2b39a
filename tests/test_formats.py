"""Stored files of another version: each format names file, version and the way out, and the guide lists them all."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pytest_nvfp4 import __version__
from pytest_nvfp4.bench.provenance import Provenance
from pytest_nvfp4.cli.app import app
from pytest_nvfp4.cli.skills.manifest import Manifest, read_manifest
from pytest_nvfp4.device.job import Job
from pytest_nvfp4.device.worker.conversation import Player
from pytest_nvfp4.guide import page
from pytest_nvfp4.isolation.door.models import parsed, validated
from pytest_nvfp4.isolation.door.versions import other_version
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.configuration.load import parse_config
from pytest_nvfp4.loop.state import Ledger, LoopState, read_model
from pytest_nvfp4.model import storage
from pytest_nvfp4.model.constants import read_device, shipped_device
from pytest_nvfp4.profile.result import Profile
from pytest_nvfp4.profiler import exchange
from pytest_nvfp4.toolchain import trace_archive

Reader = Callable[[Path], object]


def _command(*arguments: str) -> Reader:
    """Run a command on a file, and raise what it says."""

    def read(file: Path) -> object:
        done = CliRunner().invoke(app, [*arguments, str(file)], prog_name="nvfp4")
        if done.exit_code:
            raise ValueError(done.stderr)
        return done.output

    return read


def _archive(file: Path) -> object:
    return trace_archive.unpack(file.read_bytes(), source=str(file), base=file.parent, into=file.parent)


def _zip(text: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("trace.json", text)
    return packed.getvalue()


def _recording(version: int) -> bytes:
    header = {"format": "nvfp4-recording", "version": version, "recordings": []}
    target = io.BytesIO()
    np.savez_compressed(target, header=np.frombuffer(json.dumps(header).encode(), np.uint8))
    return target.getvalue()


def _table(format_line: str) -> bytes:
    return f'name = "x"\ntitle = "x"\narch = ["sm_100a"]\nbased_on = "b200"\n{format_line}\nversion = 1\n'.encode()


FORMATS: dict[str, tuple[Reader, bytes]] = {
    "layout snapshots": (_command("snapshot", "check"), b"# nvfp4-layouts 2\n# kernel  k.py\n\n# end 0\n"),
    **{
        f"{kind} snapshots": (_command("snapshot", "check"), f"# nvfp4-{kind} 2\n# kernel  k.py\n\n# end 0\n".encode())
        for kind in ("launch", "codegen", "cost", "model")
    },
    "archive of a trace": (_archive, _zip(json.dumps({"schema_version": 2, "new": 1}))),
    "recordings": (storage.load, _recording(2)),
    "records of regions": (exchange.read, b'{"format": "pytest-nvfp4 regions 2", "kernels": []}'),
    "profiles": (lambda file: parsed(Profile, file.read_bytes(), source=str(file)), b'{"schema_version": 2, "new": 1}'),
    "report": (
        lambda file: _command("accept", str(file), "--report")(file),
        b'{"schema_version": 2, "checks": []}',
    ),
    "provenance": (
        lambda file: validated(Provenance, json.loads(file.read_text()), source=str(file)),
        b'{"schema_version": 2}',
    ),
    "device tables": (lambda file: read_device(file.read_text(), str(file)), _table("format = 2")),
    "jobs": (lambda file: parsed(Job, file.read_bytes(), source=str(file)), b'{"schema_version": 2}'),
    "state of a loop": (lambda file: read_model(file, LoopState), b'{"version": 2, "new": 1}'),
    "ledger of a loop": (lambda file: read_model(file, Ledger), b'{"version": 2, "iteration": -1}'),
    "nvfp4-loop.toml": (lambda file: parse_config(file.read_text(), source=str(file)), b"new = 1\nversion = 2\n"),
    "recorded host code": (
        lambda file: Player(file, None, (0, 0), sources=file.parent),  # type: ignore[arg-type]
        b'{"format": "nvfp4-conversation 2", "steps": [], "blobs": {}}',
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_a_later_version_is_refused_with_its_version_and_the_way_out(name: str, tmp_path: Path) -> None:
    read, content = FORMATS[name]
    file = tmp_path / "stored"
    file.write_bytes(content)
    with pytest.raises(Exception, match="has version 2 of its format") as raised:
        read(file)
    said = " ".join(str(raised.value).split())
    assert f"pytest-nvfp4 {__version__} reads version 1: update pytest-nvfp4" in said
    assert name in ("recorded host code",) or str(file) in said or file.name in said
    assert "unknown field" not in said, "nothing else of it is judged"


def test_the_skills_manifest_of_a_later_version_is_refused_with_its_file(tmp_path: Path) -> None:
    (tmp_path / ".nvfp4-skills.json").write_text('{"version": 2, "new": 1}')
    with pytest.raises(Exception, match=r"\.nvfp4-skills\.json has version 2 of its format"):
        read_manifest(tmp_path)
    (tmp_path / ".nvfp4-skills.json").write_text('{"version": 1, "skills": {}}')
    assert read_manifest(tmp_path) == Manifest(), "a control: the version that is known"


def test_the_versions_that_are_known_are_read(tmp_path: Path) -> None:
    """Negative controls of the refusals above."""
    for name in ("layout snapshots", "cost snapshots", "recordings", "records of regions", "device tables"):
        read, content = FORMATS[name]
        file = tmp_path / "stored"
        file.write_bytes(_recording(1) if name == "recordings" else content.replace(b" 2", b" 1"))
        read(file)
    assert read_device(_table("").decode(), "x").digest == read_device(_table("format = 1").decode(), "x").digest
    assert shipped_device("b200").version >= 1
    assert LoopConfig.model_fields["version"].default == 1


def test_an_older_or_senseless_version_has_another_way_out() -> None:
    assert other_version(1, 2).endswith("reads version 2: write it again, or read it with the version that wrote it")
    assert other_version("x" * 99, 1).endswith("update pytest-nvfp4")


def test_the_guide_lists_every_format() -> None:
    text = page("formats").text
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    for name in FORMATS:
        word = {"provenance": "baselines", "ledger of a loop": "ledger.json"}.get(name, name.removesuffix(" snapshots"))
        assert any(word in row for row in rows), name
