"""``nvfp4 upgrade``: environments made with uv, and the comparison of two DSL versions."""

import json
import os
import sys
from pathlib import Path

import pytest

from pytest_nvfp4.cli import environments, upgrade
from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.toolchain.request import Toolchain
from tests.cli.helpers import ROOT, ROW_MAJOR

CURRENT = Toolchain.current().dsl_version

# Stands in for uv: notes how it was called, and makes a "python" that says which versions it has.
FAKE_UV = """#!/bin/sh
echo "$@" >> "$UV_LOG"
echo "VIRTUAL_ENV=${VIRTUAL_ENV-unset}" >> "$UV_LOG"
if [ "$1" = venv ]; then
    for last; do :; done
    mkdir -p "$last/bin"
    versions="'{\\"python\\": \\"3.12.1\\", \\"dsl\\": \\"${FAKE_DSL-4.4.0}\\"}'"
    printf '#!/bin/sh\\necho %s\\n' "$versions" > "$last/bin/python"
    chmod +x "$last/bin/python"
else
    if [ -n "$FAKE_ERROR" ]; then echo "$FAKE_ERROR" >&2; exit 1; fi
fi
"""


@pytest.fixture
def fake_uv(tmp_path, monkeypatch):
    """A uv that installs nothing; its calls are in the returned file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "uv").write_text(FAKE_UV)
    (folder / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("UV_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("VIRTUAL_ENV", "/some/where/else")
    return tmp_path / "log"


def test_an_environment_is_made_once(fake_uv, tmp_path) -> None:
    root = tmp_path / "cache"
    made = environments.toolchain("4.4.0", root=root)
    assert (made.dsl_version, made.python_version) == ("4.4.0", "3.12.1")
    assert made.python.is_file()
    log = fake_uv.read_text().splitlines()
    assert log[0].startswith("venv ")
    assert sys.executable in log[0]
    assert log[2].startswith("pip install ")
    assert log[2].endswith("nvidia-cutlass-dsl==4.4.0 torch")
    assert log[1] == log[3] == "VIRTUAL_ENV=unset"
    assert environments.toolchain("4.4.0", root=root) == made
    assert len(fake_uv.read_text().splitlines()) == 4, "the second time nothing is installed"
    assert [path.name for path in (root / "environments").iterdir() if path.is_dir()] == [made.python.parents[1].name]


def test_further_packages_make_another_environment(fake_uv, tmp_path) -> None:
    plain = environments.toolchain("4.4.0", root=tmp_path)
    more = environments.toolchain("4.4.0", root=tmp_path, extra=["einops==0.8.1"])
    assert plain.python != more.python
    assert fake_uv.read_text().count("einops==0.8.1") == 1


def test_the_installed_version_is_used_as_it_is(fake_uv, tmp_path) -> None:
    assert environments.toolchain(CURRENT, root=tmp_path) == Toolchain.current()
    assert not fake_uv.exists()


def test_a_failed_installation_leaves_nothing(fake_uv, tmp_path, monkeypatch) -> None:
    said = "  \u00d7 No solution found:\n  \u2570\u2500\u25b6 there is not a version of nvidia-cutlass-dsl==9.9.9"
    monkeypatch.setenv("FAKE_ERROR", said)
    with pytest.raises(InputError, match=r"9\.9\.9: uv: No solution found: there is not a version of"):
        environments.toolchain("9.9.9", root=tmp_path / "cache")
    left = [path for path in (tmp_path / "cache" / "environments").iterdir() if path.is_dir()]
    assert left == []
    del fake_uv


def test_another_version_than_asked_for_is_not_kept(fake_uv, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_DSL", "4.8.1")
    with pytest.raises(InputError, match=r"installed nvidia-cutlass-dsl 4\.8\.1 where 4\.5\.0 was requested"):
        environments.toolchain("4.5.0", root=tmp_path / "cache")
    del fake_uv


def test_half_an_environment_is_made_anew(fake_uv, tmp_path) -> None:
    made = environments.toolchain("4.4.0", root=tmp_path)
    made.python.unlink()
    assert environments.toolchain("4.4.0", root=tmp_path).python.is_file()
    assert fake_uv.read_text().count("venv ") == 2


@pytest.mark.parametrize("version", ["--index-url=x", "", "latest", "4.4.0; rm", "4.4.0 x", ">=4"])
def test_what_is_no_version(version, tmp_path) -> None:
    with pytest.raises(InputError, match="is not a version"):
        environments.toolchain(version, root=tmp_path)


@pytest.mark.parametrize("package", ["--index-url=x", "git+https://x", "a b", "../x", "a; rm -rf"])
def test_what_is_no_package(package, tmp_path) -> None:
    with pytest.raises(InputError, match="is not a package"):
        environments.toolchain("4.4.0", root=tmp_path, extra=[package])


def test_without_uv_the_command_says_how_to_get_it(tmp_path, cli, monkeypatch) -> None:
    monkeypatch.setattr(environments, "uv_path", lambda: None)
    (tmp_path / "k.py").write_text(ROW_MAJOR)
    shown = cli("upgrade", tmp_path / "k.py", "--from", "4.4.99", "--entry", "build")
    assert shown.code == 2
    assert shown.err.splitlines()[-1].endswith("get it with: pip install uv")


@pytest.mark.slow
@pytest.mark.usefixtures("in_project")
def test_a_version_against_itself_changes_nothing(cli) -> None:
    shown = cli("upgrade", "row_major.py", "--from", CURRENT, "--json")
    assert shown.code == 0, shown.err
    data = json.loads(shown.out)
    assert [summary["dsl"] for summary in data["summaries"]] == [CURRENT, CURRENT]
    assert all(not check["facts"] for check in data["checks"])


@pytest.mark.usefixtures("in_project")
def test_a_side_that_does_not_compile_is_said_and_the_other_shown(cli, monkeypatch) -> None:
    # A Python without the DSL: the environment of a version that cannot be imported.
    bare = Toolchain(Path(sys.base_prefix) / "bin" / "python3", "3.11", "1.2.3")
    real = environments.toolchain
    choose = lambda version, **more: bare if version == "1.2.3" else real(version, **more)  # noqa: E731
    monkeypatch.setattr(upgrade, "toolchain", choose)
    for arguments in (["--from", "1.2.3"], ["--from", CURRENT, "--to", "1.2.3"]):
        shown = cli("upgrade", "row_major.py", *arguments)
        assert shown.code == 1
        assert "with CuTe DSL 1.2.3 compile" in shown.out
        assert "nvidia-cutlass-dsl cannot be imported" in shown.out
        assert "--nvfp4-trace-remote" in shown.out
        assert "  registers " in shown.out, "the side that compiles is shown"


@pytest.mark.slow
def test_two_real_versions(cli, tmp_path) -> None:
    """Known differences of 4.4.0 and 4.8.1: an alignment lost, and a default that one of them prints."""
    kernel = ROOT / "kernels" / "nvfp4_group_gemm" / "steps" / "map_updates.py"
    page = tmp_path / "page.html"
    shown = cli("upgrade", kernel, "--from", "4.4.0", "--to", "4.8.1", "--json", "--html", page)
    assert shown.code in (0, 1), shown.err
    data = json.loads(shown.out)
    assert [summary["dsl"] for summary in data["summaries"]] == ["4.4.0", "4.8.1"]
    assert [summary["ok"] for summary in data["summaries"]] == [True, True]
    layouts = next(check for check in data["checks"] if check["check"].startswith("layouts"))
    changes = {change["name"]: change for change in layouts["diff"]["changes"]}
    assert changes["group_gemm_kernel.tiled_mma"]["severity"] == "cosmetic"
    assert layouts["diff"]["dsl_version"] == {"key": "dsl", "old": "4.4.0", "new": "4.8.1"}
    assert any(
        fact["name"] == "code.0.registers" or ".ptx" in fact["name"]
        for check in data["checks"]
        for fact in check["facts"]
    )
    assert "4.4.0" in page.read_text()
    again = cli("upgrade", kernel, "--from", "4.4.0", "--to", "4.8.1", "--json")
    assert "installing" not in again.err
    assert "compiling" not in again.err
