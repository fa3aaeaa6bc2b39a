"""The first minutes: ``example`` and ``init``."""

import json
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest

from pytest_nvfp4.cli.example import NAMES
from pytest_nvfp4.settings import load
from pytest_nvfp4.settings.globs import matches
from tests.cli.helpers import ROOT


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_the_shipped_kernel(cli, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    done = cli("example", name)
    assert done.code == 0
    assert Path(f"{name}.py").read_bytes() == (ROOT / "kernels" / name / "sm100.py").read_bytes()
    assert f"nvfp4 check {name}.py" in done.out


def test_an_example_overwrites_nothing_and_creates_folders(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = Path("new/folder/k.py")
    assert "created the folder new/folder" in cli("example", "--out", place).err
    place.write_text("mine")
    refused = cli("example", "--out", place)
    assert refused.code == 2
    assert "--force" in refused.err
    assert place.read_text() == "mine"
    assert cli("example", "--out", place, "--force").code == 0
    assert place.read_text() != "mine"


@pytest.mark.slow
def test_a_wheel_has_the_examples_and_the_workflow(tmp_path):
    built = subprocess.run(
        ["uv", "build", "--wheel", "--out-dir", str(tmp_path), str(ROOT)], capture_output=True, text=True, check=False
    )
    if built.returncode:
        pytest.skip(f"no wheel can be built here: {built.stderr[-300:]}")
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for name in (*(f"{name}/sm100.py" for name in NAMES), "nvfp4.yml"):
        assert f"pytest_nvfp4/examples/{name}" in names


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "my gemm.py").write_text("def custom_kernel(data):\n    pass\n")
    (tmp_path / "kernels" / "other.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"')
    (tmp_path / ".gitignore").write_text("dist")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_shows_and_writes_nothing_unasked(cli, repository):
    shown = cli("init")
    assert shown.code == 1
    assert "append to pyproject.toml:" in shown.out
    assert "write .github/workflows/nvfp4.yml:" in shown.out
    assert "wrote nothing; --yes" in shown.err
    assert (repository / ".gitignore").read_text() == "dist"
    assert not (repository / ".github").exists()


def test_init_extends_what_is_there(cli, repository):
    done = cli("init", "--yes")
    assert done.code == 0, done.err
    settings = tomllib.loads((repository / "pyproject.toml").read_text())
    assert settings["project"] == {"name": "mine"}
    assert settings["tool"]["pytest_nvfp4"] == {"kernel": [{"path": "kernels/my gemm.py"}]}
    assert settings["tool"]["pytest"] == {"ini_options": {"nvfp4_kernels": ["kernels/my gemm.py"]}}
    assert (repository / ".gitignore").read_text() == "dist\n.nvfp4/\n"
    workflow = (repository / ".github" / "workflows" / "nvfp4.yml").read_text()
    assert "uv run pytest 'kernels/my gemm.py' --nvfp4-html" in workflow
    assert ".ci/run" not in workflow  # this package's own tests
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    again = cli("init", "--yes")
    assert again.code == 0
    assert "nothing to do" in again.err
    assert before == {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}


def test_init_escapes_paths_and_keeps_settings_of_pytest(cli, repository):
    (repository / "kernels" / "my gemm.py").rename(repository / "kernels" / "k[1].py")
    settings = "[tool.pytest.ini_options]\nxfail_strict = true\n"
    (repository / "pyproject.toml").write_text(settings)
    assert cli("init", "--yes").code == 0
    text = (repository / "pyproject.toml").read_text()
    assert text.startswith(settings)
    assert [matches("kernels/k[1].py", table.path) for table in load(repository).tables] == [True]


def test_init_keeps_a_workflow_and_names_a_bad_pyproject(cli, repository):
    own = repository / ".github" / "workflows" / "nvfp4.yml"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    done = cli("init", "--yes", "--json")
    assert json.loads(done.out)["written"] == ["pyproject.toml", ".gitignore"]
    assert own.read_text() == "mine"
    (repository / "pyproject.toml").write_text("[tool")
    refused = cli("init", "--yes")
    assert refused.code == 2
    assert "pyproject.toml" in refused.err


def test_init_without_a_kernel_says_what_to_do(cli, tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    done = cli("init", "--yes")
    assert done.code == 2
    assert "nvfp4 example" in done.err
    assert not (tmp_path / ".gitignore").exists()
