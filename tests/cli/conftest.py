"""What the tests of the command share: a cache, a runner, a project with kernels."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from pytest_nvfp4.cli.app import app
from tests.cli.helpers import COLUMN_MAJOR, PADDED, ROW_MAJOR, SKEWED, Result


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all tests, so that each kernel is compiled once."""
    return tmp_path_factory.mktemp("nvfp4-cache")


@pytest.fixture(autouse=True)
def _own_cache(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP4_CACHE_DIR", str(cache_folder))
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def cli() -> Callable[..., Result]:
    """Run the command in this process; an exception that is not an exit is the test's failure."""

    def run(*arguments: object) -> Result:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="nvfp4")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Result(done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the kernels and the settings that name their entries."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in {
        "row_major": ROW_MAJOR,
        "column_major": COLUMN_MAJOR,
        "skewed": SKEWED,
        "padded": PADDED,
    }.items():
        (folder / f"{name}.py").write_text(text)
    tables = "\n".join(
        f'[[tool.pytest_nvfp4.kernel]]\npath = "{name}.py"\nentry = "{name}.py::build"\n'
        for name in ("row_major", "column_major", "skewed", "padded")
    )
    (folder / "pyproject.toml").write_text(
        f"[tool.pytest_nvfp4]\nproblems.mine = {{ m = 64, n = 128, k = 256 }}\n{tables}"
    )
    return folder


@pytest.fixture
def in_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as the working folder."""
    monkeypatch.chdir(project)
    return project
