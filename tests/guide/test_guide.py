"""The guide: each command and example runs, each option and check is there, and no page contradicts the code."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from pytest_nvfp4.guide import TOPICS, page
from pytest_nvfp4.plugin.checks.registry import BUILT_IN
from pytest_nvfp4.skills import NAMES, skill
from tests.cli.helpers import ROOT, Result, git
from tests.guide.examples import blocks, environment, matches, run_page

PAGES = {topic: page(topic).text for topic in TOPICS}
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that all pages and all processes of xdist share: each kernel is compiled and simulated once."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "guide-cache"


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: the shipped kernels, and a kernel file. It is the same for all pages, as caches name files."""
    folder = tmp_path_factory.getbasetemp() / "guide-project"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "kernels/nvfp4_group_gemm/steps/map_updates.py", folder / "my_kernel.py")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("topic", [*TOPICS, *NAMES, "README"])
def test_every_example_of_a_page_or_skill_runs(topic: str, project: Path, cache: Path) -> None:
    text = README if topic == "README" else skill(topic).text if topic in NAMES else PAGES[topic]
    wrong = run_page(text, project, environ=environment(cache))
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.slow
def test_the_package_installs_from_a_wheel_and_from_a_git_url(tmp_path: Path) -> None:
    """The commands of the README, with the paths of this machine and without what the package depends on."""
    (commands,) = (block.commands for block in blocks(README) if "install" in block.words)
    build, _, wheel, url = (command.line for command in commands)
    folder = tmp_path / "clone"
    git("clone", "-q", str(ROOT), str(folder), cwd=tmp_path)
    run = partial(subprocess.run, check=True, capture_output=True, timeout=300)
    run(shlex.split(build), cwd=folder)
    for line, target in ((wheel, "wheel"), (url, "url")):
        source = shlex.split(line)[-1].replace("/path/to/pytest-nvfp4", str(folder))
        run(["uv", "pip", "install", "--no-deps", "--target", str(tmp_path / target), source])
        installed = tmp_path / target
        assert {path.stem for path in (installed / "pytest_nvfp4/guide").glob("*.md")} == set(TOPICS)
        assert {path.parent.name for path in (installed / "pytest_nvfp4/skills").glob("*/SKILL.md")} == set(NAMES)
        assert "pytest11" in next(installed.glob("*.dist-info/entry_points.txt")).read_text()


def test_wrong_examples_are_found(tmp_path: Path) -> None:
    """Negative controls: another output, a wrong status, an unknown option, a file that does not parse."""
    page = "\n".join(
        f"```{info}\n{body}\n```"
        for info, body in (
            ("console", "$ echo one\ntwo"),
            ("console", "$ false"),
            ("console fails", "$ true"),
            ("console service", "$ nvfp4 exec --no-such-option x.py"),
            ("console service", "$ pytest --nvfp4-no-such-option"),
            ("python", "def f(:"),
            ("toml", "a = "),
            ("cobol", "STOP RUN."),
            ("console", "$ printf 'a\\nb\\nc\\n'\na\n...c"),
        )
    )
    wrong = run_page(page, tmp_path, environ=environment(tmp_path / "cache"))
    assert len(wrong) == 8
    assert all(text.startswith(f"block at line {1 + 3 * at}") for at, text in enumerate(wrong[:1]))


def test_an_output_matches_up_to_dots_and_white_space_at_ends() -> None:
    assert matches("a...z", "abc  \nxyz\n")
    assert matches("...", "")
    assert not matches("a...z", "abc")
    assert not matches("", "something")


def test_every_option_is_described_and_every_described_option_exists(pytestconfig: pytest.Config) -> None:
    described = set(re.findall(r"--nvfp4-[a-z0-9-]+", PAGES["settings"]))
    declared = {
        name
        for group in pytestconfig._parser._groups
        for option in group.options
        for name in option.names()
        if name.startswith("--nvfp4-")
    }
    assert described == declared
    for topic, text in (*PAGES.items(), *((name, skill(name).text) for name in NAMES)):
        unknown = set(re.findall(r"--nvfp4-[a-z0-9-]+", text)) - declared
        assert not unknown, (topic, unknown)


def test_every_ini_option_is_described(pytestconfig: pytest.Config) -> None:
    declared = {name for name in pytestconfig._parser._inidict if name.startswith("nvfp4_")}
    described = set(re.findall(r"`(nvfp4_[a-z_]+)`", PAGES["settings"]))
    assert declared == described


def documented_keys() -> dict[str, set[str]]:
    """Command of the agents page -> keys that the page lists; ``list[].key`` for those of the objects in a list."""
    text = PAGES["agents"].partition("## JSON")[2]
    documented: dict[str, set[str]] = {}
    for row in re.findall(r"^- `nvfp4 .*?(?=^- |^$)", text, re.MULTILINE | re.DOTALL):
        command, _, keys = " ".join(row.split()).removeprefix("- `").partition("`: ")
        found = documented.setdefault(command, set())
        for name, inner in re.findall(r"`(\w+(?:\[\])?)`(?: \(([^)]*)\))?", keys):
            found |= {name.removesuffix("[]"), *(f"{name}.{key}" for key in re.findall(r"`(\w+)`", inner))}
    return documented


def keys_of(document: dict[str, object]) -> set[str]:
    """The keys of a document, and those of the objects in its lists."""
    found = set(document)
    for name, value in document.items():
        if isinstance(value, list):
            found |= {f"{name}[].{key}" for one in value if isinstance(one, dict) for key in one}
    return found


def test_the_commands_whose_keys_are_listed_are_those_that_agents_need() -> None:
    assert len(documented_keys()) >= 14
    for command, keys in documented_keys().items():
        assert "--json" in command
        assert keys


@pytest.mark.slow
def test_the_json_of_each_command_has_the_keys_that_are_listed(project: Path, cache: Path) -> None:
    (project / "report.csv").write_text('"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n"0","gemm","12500"\n')
    result = {"version": 1, "iteration": 1, "kernel_path": "my_kernel.py", "decision": "KEEP"}
    (project / "worker_result.json").write_text(json.dumps(result))
    race = {"kind": "race", "message": "two writes", "line": 1, "acceptable": {"text": "x = 1", "others": []}}
    check = {"kernel": "my_kernel.py", "check": "races[gpumode-0]", "findings": [race], "warnings": []}
    (project / "report.json").write_text(json.dumps({"checks": [check]}))
    differ = {}
    for command, keys in documented_keys().items():
        done = subprocess.run(
            shlex.split(command), cwd=project, env=environment(cache), capture_output=True, text=True, check=False,
            timeout=500,
        )  # fmt: skip
        assert done.returncode in (0, 1), (command, done.stderr)
        if (found := keys_of(json.loads(done.stdout))) != keys:
            differ[command] = {"missing in the page": found - keys, "not there": keys - found}
    assert not differ


def test_the_checks_are_described() -> None:
    """The table of the checks page lists the checks of this package."""
    table = PAGES["checks"].partition("| check |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)) == {check.name for check in BUILT_IN}


def test_the_rooms_of_the_architecture_page_are_the_import_contract_s() -> None:
    """The table lists the layers of import-linter, from the bottom to the top, and every room of the package."""
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    expected = [set(re.findall(r"pytest_nvfp4\.(\w+)", layer)) for layer in reversed(layers)]
    table = PAGES["architecture"].partition("| room |")[2].partition("\n\n")[0]
    rooms = [set(re.findall(r"`(\w+)`", row.split("|")[1])) for row in table.splitlines()[2:]]
    assert rooms == expected
    there = {path.name.removesuffix(".py") for path in (ROOT / "pytest_nvfp4").iterdir() if path.suffix in ("", ".py")}
    assert there - {"__init__", "__pycache__", "guide", "skills"} == set().union(*rooms)


def test_the_readme_is_one_page() -> None:
    lines = README.splitlines()
    assert len(lines) <= 200
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    "name", ["README.md", ".github/CONTRIBUTING.md", *(f"pytest_nvfp4/guide/{t}.md" for t in TOPICS)]
)
def test_links_and_paths_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert ((ROOT / name).parent / target).exists(), target
    for path in re.findall(r"`((?:pytest_nvfp4|tests|kernels|\.github)/[\w./-]+)`", text):
        # NAME, OP and ARCH stand for names of the reader's
        assert re.search(r"\b(?:NAME|OP|ARCH)\b", path) or (ROOT / path).exists(), path


def test_the_topics_are_listed(cli: Callable[..., Result]) -> None:
    listed = cli("guide").out.splitlines()
    assert [line.split()[0] for line in listed] == list(TOPICS)
    assert {path.stem for path in (ROOT / "pytest_nvfp4/guide").glob("*.md")} == set(TOPICS)


def test_a_page_is_shown_rendered_or_raw(cli: Callable[..., Result]) -> None:
    assert cli("guide", "races", "--raw").out == PAGES["races"]
    shown = cli("guide", "races").out
    assert "happens-before" in shown
    assert "```" not in shown


def test_an_unknown_topic_names_the_nearest(cli: Callable[..., Result]) -> None:
    done = cli("guide", "race")
    assert done.code == 2
    assert "did you mean 'races'?" in done.err
    assert "topics are start, checks" in cli("guide", "zzz").err
