"""The product's commands as processes: their environment, their module path, their end."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pytest_nvfp4.isolation import StoppedError, stopped_by
from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.judge.processes import passed_on, run_product
from pytest_nvfp4.loop.judge.product import Product
from tests.waiting import LONGEST_S


def product(root: Path, **sections: object) -> Product:
    config = LoopConfig.model_validate({"kernel": {"file": "kernels/k.py"}, "mode": "manual", **sections})
    return Product(config, root, jobs=1)


def test_a_command_is_that_of_this_installation_whatever_lies_in_the_worktree(tmp_path: Path) -> None:
    for name in ("pytest_nvfp4", "click"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a candidate was imported')\n")
    done = run_product(["nvfp4", "--version"], cwd=tmp_path, deadline_s=LONGEST_S)
    assert (done.returncode, done.stderr.text) == (0, "")


def test_the_users_options_and_secrets_stay_out() -> None:
    environ = {"PYTEST_ADDOPTS": "-k nothing", "MODAL_TOKEN_ID": "t", "AWS_SECRET": "s", "NVFP4_SANDBOX": "require"}
    given = passed_on(environ)
    assert given["MODAL_TOKEN_ID"] == "t"
    assert given["NVFP4_SANDBOX"] == "require"
    assert not {"PYTEST_ADDOPTS", "AWS_SECRET"} & given.keys()


def test_a_stopped_loop_ends_its_command(tmp_path: Path) -> None:
    event = threading.Event()
    event.set()
    with stopped_by(event), pytest.raises(StoppedError):
        run_product(["nvfp4", "--version"], cwd=tmp_path, deadline_s=LONGEST_S)


def test_a_command_ends_with_its_judge(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import os, time\nos.write(1, b'started %d\\n' % os.getpid())\ntime.sleep(600)\n"
    )
    judge = (
        "import os, pathlib, signal\n"
        "from pytest_nvfp4.isolation import streamed\n"
        "from pytest_nvfp4.isolation.run_module import module_command\n"
        "command = module_command('pytest', '-s')\n"
        "for _, data in streamed(command, cwd=pathlib.Path('.'), deadline_s=600):\n"
        "    if b'started' in data:\n"
        "        print(data.decode().split()[1], flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", judge], cwd=tmp_path, capture_output=True, text=True, check=False)
    pid = int(ended.stdout)
    for _ in range(1000):
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        threading.Event().wait(0.01)
    os.kill(pid, 9)
    pytest.fail("the command outlived its judge")


def test_accepted_findings_reject_a_candidate_unless_the_owner_says_otherwise(tmp_path: Path) -> None:
    def command(**policy: object) -> list[str]:
        return product(tmp_path, policy=policy).pytest(("races",), tmp_path / "r.json", deadline_s=60)

    assert "--nvfp4-accepted=off" in command()
    assert "--nvfp4-accepted=off" not in command(accepted="honoured")


def test_settings_above_the_worktree_do_not_reach_it(tmp_path: Path) -> None:
    root = tmp_path / "worktree"
    (root / "kernels").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest_nvfp4]\nproblems = ['nonsense']\n")
    made = product(root)
    made.prepare()
    assert (root / "pyproject.toml").read_text() == "\n[tool.pytest_nvfp4]\n"
    command = made.pytest(["compile"], tmp_path / "r.json", deadline_s=60)
    assert command[-2:] == ["-c", str(root / "pyproject.toml")]


@pytest.mark.parametrize("name", ["pyproject.toml", "kernels/pyproject.toml"])
def test_the_worktrees_own_settings_stay_as_they_are(tmp_path: Path, name: str) -> None:
    text = "[tool.pytest.ini_options]\n[tool.pytest_nvfp4]\n"
    (tmp_path / "kernels").mkdir()
    (tmp_path / name).write_text(text)
    made = product(tmp_path)
    made.prepare()
    assert (tmp_path / name).read_text() == text
    assert "-c" not in made.pytest(["compile"], tmp_path / "r.json", deadline_s=60)


def test_the_kernels_hang_ends_before_the_examination_does(tmp_path: Path) -> None:
    command = product(tmp_path).pytest(["verify"], tmp_path / "r.json", deadline_s=90)
    assert "--nvfp4-timeout=30" in command
    assert "--nvfp4-device-timeout=30" in command


@pytest.mark.parametrize("section", [{"judge": {"remote": "popcorn:x"}}, {"device": {"name": "popcorn"}}])
def test_a_public_leaderboard_is_no_place_to_judge(tmp_path: Path, section: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="submits to a public leaderboard"):
        product(tmp_path, budget={"dollars": 1}, **section)


def test_a_kernel_with_tests_of_its_own_is_not_imported_by_pytest(tmp_path: Path) -> None:
    marker = tmp_path / "imported"
    cheat = f"import sys\nif '_pytest' in sys.modules:\n    open({str(marker)!r}, 'w').close()\nraise ValueError('x')\n"
    root = tmp_path / "worktree"
    (root / "kernels").mkdir(parents=True)
    body = "def custom_kernel(data):\n    return data\ndef test_of_its_own():\n    pass\n"
    (root / "kernels" / "k.py").write_text(cheat + body)
    (root / "conftest.py").write_text("import runpy\nrunpy.run_path('kernels/k.py')\n")
    made = product(root)
    made.prepare()
    command = [*made.pytest(["compile"], tmp_path / "report.json", deadline_s=LONGEST_S), "--collect-only"]
    done = run_product(command, cwd=root, deadline_s=LONGEST_S)
    assert not marker.exists()
    assert done.returncode == 0, done
    assert "k.py::compile" in done.stdout.text
    assert "test_of_its_own" not in done.stdout.text
