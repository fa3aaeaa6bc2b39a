"""Skills: their format, and an installer that never touches what it did not write."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_nvfp4.cli.skills import install, installation
from pytest_nvfp4.cli.skills.manifest import FILE
from pytest_nvfp4.skills import MAIN, NAMES, skill
from tests.cli.helpers import ROOT, Result

Cli = Callable[..., Result]
GATE = NAMES[0]


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository, with the working folder below its root."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path


def tree(folder: Path) -> dict[str, str]:
    """Each file and link below a folder, with its content or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[path.relative_to(folder).as_posix()] = f"-> {path.readlink()}"
        elif path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_text()
    return found


def states(cli: Cli, *arguments: str) -> dict[str, str]:
    """The state of each skill, as the command finds it."""
    done = cli("skills", "install", "--json", *arguments)
    (folder,) = json.loads(done.out)["folders"]
    return {one["name"]: one["state"] for one in folder["skills"]}


def renew(monkeypatch: pytest.MonkeyPatch, name: str, **files: bytes) -> None:
    """Give a skill other files, as a later version of the package has."""
    new = replace(skill(name), files={file.replace("_", "/") + ".md": content for file, content in files.items()})
    monkeypatch.setattr(install, "skill", lambda asked: new if asked == name else skill(asked))


@pytest.mark.parametrize("name", NAMES)
def test_a_skill_has_the_format_that_agents_read(name: str) -> None:
    one = skill(name)
    assert one.name == name
    assert len(name) <= 64
    assert 50 < len(one.description) <= 500
    # A plain scalar of YAML, so that any parser reads what ours does.
    assert ": " not in one.description
    assert " #" not in one.description
    assert one.description[0].isalpha()
    assert one.text.startswith("# ")
    assert max(map(len, one.text.splitlines())) <= 320
    assert len(one.text) < 5000


def test_the_names_are_those_of_the_folders() -> None:
    assert {path.parent.name for path in (ROOT / "pytest_nvfp4/skills").glob("*/SKILL.md")} == set(NAMES)
    with pytest.raises(KeyError):
        skill("../guide")


def test_this_repository_has_its_own_skills_up_to_date(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = cli("skills", "install", "--check", "--for", "agents", "--for", "claude")
    assert done.code == 0, done.out
    for folder in (".agents", ".claude"):
        assert (ROOT / folder / "skills" / GATE / MAIN).read_bytes() == skill(GATE).files[MAIN]
        assert not (ROOT / folder / "skills" / GATE).readlink().is_absolute()


def test_skills_are_listed_and_shown(cli: Cli) -> None:
    listed = json.loads(cli("skills", "list", "--json").out)["skills"]
    assert [one["name"] for one in listed] == list(NAMES)
    assert json.loads(cli("skills", "list", GATE, "--json").out)["text"] == skill(GATE).text
    assert cli("skills", "list", "nothing").code == 2


def test_skills_are_written_once_and_checked(cli: Cli, repo: Path) -> None:
    assert cli("skills", "install", "--check").code == 1
    assert tree(repo / ".agents") == {}
    done = cli("skills", "install", "--for", "claude", "--for", "codex")
    assert done.code == 0
    for folder in (".claude", ".agents"):
        written = tree(repo / folder / "skills")
        assert written.pop(FILE)
        assert written == {f"{name}/{MAIN}": skill(name).files[MAIN].decode() for name in NAMES}
    before = {path: path.stat().st_mtime_ns for path in repo.rglob("*") if path.is_file()}
    assert set(states(cli)) == set(NAMES)
    assert set(states(cli).values()) == {"current"}
    assert before == {path: path.stat().st_mtime_ns for path in repo.rglob("*") if path.is_file()}


def test_an_update_replaces_what_is_ours_only(cli: Cli, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = repo / ".agents/skills"
    cli("skills", "install")
    (folder / GATE / "mine.md").write_text("mine")
    renew(monkeypatch, GATE, SKILL=b"new", more_part=b"part")
    assert states(cli, "--check")[GATE] == "outdated"
    assert cli("skills", "install").code == 0
    found = tree(folder / GATE)
    assert found == {MAIN: "new", "mine.md": "mine", "more/part.md": "part"}
    assert states(cli, "--check")[GATE] == "current"
    renew(monkeypatch, GATE, SKILL=b"newer")
    assert cli("skills", "install").code == 0
    assert tree(folder / GATE) == {MAIN: "newer", "mine.md": "mine"}
    assert not (folder / GATE / "more").exists()


def test_an_edited_skill_is_left_until_force(cli: Cli, repo: Path) -> None:
    cli("skills", "install")
    file = repo / ".agents/skills" / GATE / MAIN
    file.write_text("edited")
    done = cli("skills", "install")
    assert done.code == 1
    assert "SKILL.md was edited" in done.out
    assert file.read_text() == "edited"
    assert cli("skills", "install", "--check").code == 1
    assert cli("skills", "install", "--force").code == 0
    assert file.read_bytes() == skill(GATE).files[MAIN]
    assert cli("skills", "install", "--check", "--force").code == 2


def _folder(place: Path, _: Path) -> None:
    place.mkdir(parents=True)
    (place / MAIN).write_text("mine")


def _other_file(place: Path, _: Path) -> None:
    place.mkdir(parents=True)
    (place / "notes.md").write_text("mine")


def _link(place: Path, outside: Path) -> None:
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)


def _file(place: Path, _: Path) -> None:
    place.parent.mkdir(parents=True)
    place.write_text("mine")


def _linked_file(place: Path, outside: Path) -> None:
    place.mkdir(parents=True)
    (place / MAIN).symlink_to(outside / MAIN)


def _pipe(place: Path, _: Path) -> None:
    place.mkdir(parents=True)
    os.mkfifo(place / MAIN)


@pytest.mark.parametrize("make", [_folder, _other_file, _link, _file, _linked_file, _pipe])
@pytest.mark.parametrize("options", [(), ("--force",), ("--link",), ("--link", "--force")])
def test_what_is_not_ours_is_never_touched(
    cli: Cli, repo: Path, make: Callable[[Path, Path], None], options: tuple[str, ...]
) -> None:
    outside = repo / "outside"
    outside.mkdir()
    (outside / MAIN).write_text("outside")
    make(repo / ".agents/skills" / GATE, outside)
    before = tree(repo / ".agents/skills" / GATE), tree(outside), (repo / ".agents/skills" / GATE).is_symlink()
    done = cli("skills", "install", *options)
    assert done.code == 1
    assert "this command did not write it" in done.out
    assert before == (
        tree(repo / ".agents/skills" / GATE), tree(outside), (repo / ".agents/skills" / GATE).is_symlink(),
    )  # fmt: skip
    assert (repo / ".agents/skills" / NAMES[1] / MAIN).is_file()


def test_a_file_of_yours_in_a_skill_of_ours_is_not_overwritten_by_a_new_version(
    cli: Cli, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("skills", "install")
    mine = repo / ".agents/skills" / GATE / "more.md"
    mine.write_text("mine")
    renew(monkeypatch, GATE, SKILL=b"new", more=b"theirs")
    for options in ((), ("--force",)):
        assert cli("skills", "install", *options).code == 1
        assert mine.read_text() == "mine"


def test_an_edit_through_a_link_is_not_followed(cli: Cli, repo: Path) -> None:
    cli("skills", "install")
    outside = repo / "outside.md"
    outside.write_text("outside")
    file = repo / ".agents/skills" / GATE / MAIN
    file.unlink()
    file.symlink_to(outside)
    assert states(cli, "--check")[GATE] == "changed"
    assert cli("skills", "install", "--force").code == 0
    assert outside.read_text() == "outside"
    assert file.read_bytes() == skill(GATE).files[MAIN]
    assert not file.is_symlink()


def test_links_lead_to_the_package_and_become_copies_and_links_again(cli: Cli, repo: Path) -> None:
    place = repo / ".agents/skills" / GATE
    assert cli("skills", "install", "--link").code == 0
    assert place.is_symlink()
    assert place.resolve() == (ROOT / "pytest_nvfp4/skills" / GATE).resolve()
    assert set(states(cli).values()) == {"current"}
    assert place.is_symlink()
    assert cli("skills", "install", "--copy").code == 0
    assert not place.is_symlink()
    (place / "mine.md").write_text("mine")
    done = cli("skills", "install", "--link")
    assert done.code == 1
    assert "mine.md, which this command did not write" in done.out
    assert (repo / ".agents/skills" / NAMES[1]).is_symlink()
    assert (ROOT / "pytest_nvfp4/skills" / GATE / MAIN).is_file()


def test_a_link_to_an_older_installation_is_replaced(cli: Cli, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = repo / "older"
    shutil.copytree(ROOT / "pytest_nvfp4/skills" / GATE, older)
    with monkeypatch.context() as patch:
        patch.setattr(installation.Place, "_target", lambda *_: str(older))
        cli("skills", "install", "--link")
    assert states(cli, "--check")[GATE] == "outdated"
    assert cli("skills", "install").code == 0
    assert (repo / ".agents/skills" / GATE).resolve() == (ROOT / "pytest_nvfp4/skills" / GATE).resolve()
    assert tree(older)


def test_a_skill_that_is_no_longer_shipped_is_removed_unless_it_was_edited(
    cli: Cli, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("skills", "install")
    monkeypatch.setattr(install, "NAMES", NAMES[2:])
    (repo / ".agents/skills" / GATE / MAIN).write_text("edited")
    assert cli("skills", "install").code == 1
    assert (repo / ".agents/skills" / GATE / MAIN).read_text() == "edited"
    assert not (repo / ".agents/skills" / NAMES[1]).exists()


def test_a_kill_between_two_files_leaves_nothing_that_counts_as_yours(
    cli: Cli, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("skills", "install")
    renew(monkeypatch, GATE, SKILL=b"new", more=b"more")
    written = []

    def killed(path: Path, content: bytes) -> None:
        if written:
            raise KeyboardInterrupt
        written.append(path)
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr(installation, "write_whole", killed)
        cli("skills", "install")
    assert written
    assert states(cli, "--check")[GATE] == "outdated"
    assert cli("skills", "install").code == 0
    assert tree(repo / ".agents/skills" / GATE) == {MAIN: "new", "more.md": "more"}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"version": 2}', '{"version": 1, "skills": {"../../outside": {"files": {}}}}',
     '{"version": 1, "skills": {"nvfp4-x": {"files": {"../../outside.md": ["%s"]}}}}' % ("0" * 64)],
)  # fmt: skip
def test_a_manifest_that_is_none_is_named_and_changes_nothing(cli: Cli, repo: Path, text: str) -> None:
    folder = repo / ".agents/skills"
    folder.mkdir(parents=True)
    (folder / FILE).write_text(text)
    done = cli("skills", "install")
    assert done.code == 2
    assert FILE in done.err
    assert "remove the file" in done.err
    assert tree(folder) == {FILE: text}


def test_a_folder_that_leads_out_of_the_repository_is_refused(cli: Cli, repo: Path, tmp_path_factory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (repo / ".claude").symlink_to(outside)
    done = cli("skills", "install", "--for", "claude")
    assert done.code == 2
    assert "--folder" in done.err
    assert not list(outside.iterdir())
    assert cli("skills", "install", "--folder", outside / "skills").code == 0
    assert (outside / "skills" / GATE / MAIN).is_file()
    assert cli("skills", "install", "--folder", outside, "--for", "claude").code == 2


def test_a_folder_that_agents_share_is_written_once(cli: Cli, repo: Path) -> None:
    (repo / ".claude").mkdir()
    (repo / ".claude/skills").symlink_to("../.agents/skills")
    (repo / ".agents/skills").mkdir(parents=True)
    done = cli("skills", "install", "--for", "claude", "--for", "agents", "--json")
    assert len(json.loads(done.out)["folders"]) == 1


@pytest.mark.usefixtures("repo")
def test_a_folder_that_cannot_be_written_is_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _: bytes) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(installation, "write_whole", refuse)
    done = cli("skills", "install")
    assert done.code == 2
    assert "cannot be written: Permission denied" in done.err
