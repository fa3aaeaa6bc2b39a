"""The loop's repository: the incumbent's branch, candidates, promotion, checkouts, and what stays untouched."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from pytest_nvfp4.loop.repository.git import GitError
from pytest_nvfp4.loop.repository.repository import RefusedPathError
from pytest_nvfp4.loop.schemas import Candidate
from tests.loop.repositories import (
    FILES,
    KERNEL,
    Footprint,
    candidate_of,
    make_repository,
    opened,
    user_git,
    verdict_of,
)


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return make_repository(tmp_path / "a user's répo")


def promoted(top: Path, number: int, text: str, **words: str) -> str:
    repository = opened(top)
    candidate = candidate_of(repository, number, text, **words)
    return repository.promote(candidate, verdict_of(candidate), expected=candidate.parent, seconds=1_700_000_000)


def test_the_branch_begins_at_head_and_is_found_again(top: Path) -> None:
    head = user_git(top, "rev-parse", "HEAD")
    assert opened(top).incumbent() == head
    (top / KERNEL).write_text("STAGES = 2\n")
    user_git(top, "commit", "--quiet", "-am", "the user goes on")
    assert opened(top).incumbent() == head == user_git(top, "rev-parse", "nvfp4-loop/loop")


def test_a_lock_that_the_users_git_holds_for_a_moment_is_waited_for(top: Path) -> None:
    base = opened(top).incumbent()
    lock = top / ".git" / "refs" / "heads" / "nvfp4-loop" / "loop.machine.lock"
    lock.touch()
    release = threading.Timer(0.5, lock.unlink)
    release.start()
    try:
        assert promoted(top, 1, "STAGES = 2\n") != base
    finally:
        release.join()


def test_a_branch_that_is_gone_is_named_so(top: Path) -> None:
    repository = opened(top)
    candidate = candidate_of(repository, 1, "STAGES = 2\n")
    user_git(top, "branch", "-D", "nvfp4-loop/loop")
    with pytest.raises(GitError, match=f"loop is gone, and the loop left it at {candidate.parent}"):
        repository.promote(candidate, verdict_of(candidate), expected=candidate.parent, seconds=1)


def test_a_promotion_is_one_commit_on_the_branch_with_the_judged_tree(top: Path) -> None:
    base = opened(top).incumbent()
    commit = promoted(top, 1, "STAGES = 3\n")
    assert opened(top).incumbent() == commit
    assert user_git(top, "rev-list", f"{base}..nvfp4-loop/loop").splitlines() == [commit]
    assert user_git(top, "show", f"{commit}:{KERNEL}") == "STAGES = 3"
    assert user_git(top, "diff", "--name-only", base, commit) == KERNEL


def test_a_promotion_can_be_repeated_and_depends_on_its_arguments_only(top: Path, tmp_path: Path) -> None:
    repository = opened(top)
    candidate = candidate_of(repository, 1, "STAGES = 3\n")
    arguments = {"expected": candidate.parent, "seconds": 1_700_000_000}
    first = repository.promote(candidate, verdict_of(candidate), **arguments)
    assert opened(top).promote(candidate, verdict_of(candidate), **arguments) == first
    assert len(user_git(top, "rev-list", f"{candidate.parent}..{first}").splitlines()) == 1
    clone = tmp_path / "clone"
    user_git(tmp_path, "clone", "--quiet", "--no-local", str(top), str(clone))
    again = candidate_of(opened(clone), 1, "STAGES = 3\n")
    assert again.commit == candidate.commit
    assert opened(clone).promote(again, verdict_of(again), **arguments) == first


def test_a_branch_that_was_moved_is_not_overwritten(top: Path) -> None:
    repository = opened(top)
    candidate = candidate_of(repository, 1, "STAGES = 3\n")
    promoted(top, 2, "STAGES = 9\n")
    before = repository.incumbent()
    with pytest.raises(GitError, match="another process has moved it"):
        repository.promote(candidate, verdict_of(candidate), expected=candidate.parent, seconds=1)
    assert repository.incumbent() == before


def test_a_record_of_another_tree_is_not_promoted(top: Path) -> None:
    repository = opened(top)
    candidate = candidate_of(repository, 1, "STAGES = 3\n")
    other = candidate_of(repository, 2, "STAGES = 4\n")
    mixed = candidate.model_copy(update={"tree": other.tree})
    with pytest.raises(GitError, match="another tree"):
        repository.promote(mixed, verdict_of(mixed), expected=mixed.parent, seconds=1)


def test_the_second_candidate_of_an_iteration_is_promoted_as_it_was_judged(top: Path) -> None:
    repository = opened(top)
    first, second = (candidate_of(repository, number, f"STAGES = {number}{number}\n") for number in (1, 2))
    at = repository.promote(first, verdict_of(first), expected=first.parent, seconds=1)
    commit = repository.promote(second, verdict_of(second), expected=at, seconds=2)
    assert user_git(top, "rev-parse", f"{commit}^", f"{commit}^{{tree}}").splitlines() == [at, second.tree]


def test_the_user_s_checkout_index_branches_and_settings_stay(top: Path) -> None:
    (top / "kernels/other.py").write_text("OTHER = 2  # staged\n")
    user_git(top, "add", "kernels/other.py")
    (top / "kernels/other.py").write_text("OTHER = 3  # not staged\n")
    user_git(top, "stash", "push", "--quiet")
    (top / "conftest.py").write_text("# not staged\n")
    (top / "notes.txt").write_text("untracked\n")
    before = Footprint.of(top)
    repository = opened(top, start=top / "kernels")
    candidate = candidate_of(repository, 1, "STAGES = 3\n")
    with repository.worktree(candidate.commit or "", top / ".nvfp4/loop/judge/0001"):
        pass
    repository.promote(candidate, verdict_of(candidate), expected=candidate.parent, seconds=1)
    repository.clean()
    assert repository.uncommitted() == ("conftest.py",)
    assert Footprint.of(top) == before
    user_git(top, "config", "some.setting", "1")
    assert Footprint.of(top) != before, "the footprint sees a change of the settings"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda top: (top / KERNEL).write_text("STAGES = 7\n"), "commit or stash its changes"),
        (lambda top: (top / KERNEL).unlink(), "commit or stash its changes"),
        (lambda top: user_git(top, "rm", "--quiet", KERNEL), "commit or stash its changes"),
    ],
)
def test_a_kernel_with_uncommitted_changes_is_refused(top: Path, change, message: str) -> None:
    change(top)
    with pytest.raises(GitError, match=message):
        opened(top).incumbent()
    assert user_git(top, "for-each-ref") == user_git(top, "for-each-ref", "refs/heads/main")


def test_a_kernel_that_git_does_not_track_or_that_is_a_link_is_refused(top: Path) -> None:
    (top / "kernels/new.py").write_text("")
    (top / "kernels/link.py").symlink_to("k.py")
    user_git(top, "add", "kernels/link.py")
    user_git(top, "commit", "--quiet", "-m", "link")
    with pytest.raises(GitError, match="commit it first"):
        opened(top, kernel="kernels/new.py").incumbent()
    with pytest.raises(GitError, match="is a link"):
        opened(top, kernel="kernels/link.py").incumbent()


def test_folders_without_a_usable_repository_are_refused(tmp_path: Path, top: Path) -> None:
    with pytest.raises(GitError, match="is in no git repository"):
        opened(tmp_path)
    user_git(tmp_path, "init", "--quiet", "--bare", "bare.git")
    with pytest.raises(GitError, match="bare repository"):
        opened(tmp_path / "bare.git")
    (tmp_path / "empty").mkdir()
    user_git(tmp_path / "empty", "init", "--quiet")
    with pytest.raises(GitError, match="has no commit yet"):
        opened(tmp_path / "empty").incumbent()
    with pytest.raises(GitError, match="cannot be part of a branch"):
        opened(top, name="a..b")


def test_a_branch_that_is_checked_out_is_not_moved(top: Path) -> None:
    repository = opened(top)
    candidate = candidate_of(repository, 1, "STAGES = 3\n")
    user_git(top, "switch", "--quiet", "nvfp4-loop/loop")
    before = Footprint.of(top)
    with pytest.raises(GitError, match="is checked out in"):
        repository.promote(candidate, verdict_of(candidate), expected=candidate.parent, seconds=1)
    with pytest.raises(GitError, match="is checked out in"):
        opened(top).incumbent()
    assert Footprint.of(top) == before


def test_hooks_signing_and_a_missing_identity_have_no_effect(top: Path, tmp_path: Path) -> None:
    for hook in ("reference-transaction", "post-index-change", "post-checkout", "pre-commit", "commit-msg"):
        place = top / ".git/hooks" / hook
        place.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran-{hook}'\nexit 1\n")
        place.chmod(0o755)
    for setting in ("commit.gpgSign=true", "gpg.program=/nonexistent", "user.useConfigOnly=true", "core.fsmonitor=x"):
        user_git(top, "config", *setting.split("="))
    commit = promoted(top, 1, "STAGES = 3\n")
    assert "gpgsig" not in user_git(top, "cat-file", "commit", commit)
    assert not list(tmp_path.glob("ran-*"))
    with pytest.raises(AssertionError, match="hook"):
        user_git(top, "update-ref", "refs/heads/control", commit)
    assert list(tmp_path.glob("ran-*")), "the hooks run otherwise"


def test_variables_of_git_in_the_environment_have_no_effect(
    top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_repository(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.worktree")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "/nonexistent")
    promoted(top, 1, "STAGES = 3\n")
    assert "nvfp4-loop" in user_git(top, "for-each-ref")
    assert "nvfp4-loop" not in user_git(other, "for-each-ref")


@pytest.mark.parametrize("options", [(), ("--object-format=sha256",)], ids=["sha1", "sha256"])
def test_names_with_spaces_and_letters_of_all_scripts(tmp_path: Path, options: tuple[str, ...]) -> None:
    kernel = "ker nels/ключ \"q\" 'é'\t.py"
    top = make_repository(tmp_path / "r", {kernel: "A = 1\n", "b:[x]*.py": ""}, *options)
    repository = opened(top, kernel=kernel)
    candidate = candidate_of(repository, 1, "A = 2\n")
    commit = repository.promote(candidate, verdict_of(candidate), expected=candidate.parent, seconds=1)
    assert len(commit) == (64 if options else 40)
    assert repository.files(commit) == {kernel: "100644", "b:[x]*.py": "100644"}
    assert repository.read(commit, kernel) == b"A = 2\n"
    with repository.worktree(commit, top / ".nvfp4/loop/judge/0001") as place:
        assert (place / kernel).read_text() == "A = 2\n"
        assert user_git(place, "status", "--porcelain") == ""


def test_a_worktree_is_a_clean_repository_of_its_own_and_is_removed(top: Path) -> None:
    repository = opened(top)
    commit = repository.incumbent()
    folder = top / ".nvfp4/loop/judge/0001"
    folder.mkdir(parents=True)
    (folder / "left by a killed one").write_text("")
    before = Footprint.of(top)
    with repository.worktree(commit, folder) as place:
        assert {str(path.relative_to(place)) for path in place.rglob("*.py")} == {n for n in FILES if n.endswith(".py")}
        assert user_git(place, "status", "--porcelain") == ""
        assert user_git(place, "log", "--format=%s") == "first"
        (place / KERNEL).write_text("x\n")
        user_git(place, "commit", "--quiet", "-am", "its own")
        user_git(place, "branch", "main", "HEAD")
        user_git(place, "config", "user.name", "worker")
        user_git(place, "stash", "list")
        repository.clean()
        assert (place / KERNEL).is_file(), "it is used"
    assert not folder.exists()
    assert Footprint.of(top) == before
    assert user_git(top, "worktree", "list").count("\n") == 0


def test_clean_removes_what_killed_processes_left_and_follows_no_link(top: Path, tmp_path: Path) -> None:
    repository = opened(top)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("")
    left = top / ".nvfp4/loop/work/0003/tree"
    left.mkdir(parents=True)
    (left / "locked").mkdir(mode=0)
    (top / ".nvfp4/loop/judge").mkdir()
    (top / ".nvfp4/loop/judge/0004").symlink_to(outside)
    repository.clean()
    assert list((top / ".nvfp4/loop/work").iterdir()) == []
    assert list((top / ".nvfp4/loop/judge").iterdir()) == []
    assert (outside / "precious").exists()


def test_checkouts_of_linked_worktrees_and_shallow_clones(top: Path, tmp_path: Path) -> None:
    for number in (2, 3):
        (top / KERNEL).write_text(f"STAGES = {number}\n")
        user_git(top, "commit", "--quiet", "-am", f"commit {number}")
    bare, linked, shallow = tmp_path / "bare.git", tmp_path / "linked", tmp_path / "shallow"
    user_git(tmp_path, "clone", "--quiet", "--bare", str(top), str(bare))
    user_git(bare, "worktree", "add", "--quiet", "--detach", str(linked), "main")
    user_git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{top}", str(shallow))
    for place in (linked, shallow):
        before = Footprint.of(place)
        repository = opened(place)
        candidate = candidate_of(repository, 1, "STAGES = 9\n")
        commit = repository.promote(candidate, verdict_of(candidate), expected=candidate.parent, seconds=1)
        with repository.worktree(commit, place / ".nvfp4/loop/judge/0001") as checkout:
            assert (checkout / KERNEL).read_text() == "STAGES = 9\n"
            assert user_git(checkout, "log", "--format=%s").splitlines()[1] == "commit 3"
        assert Footprint.of(place) == before


def test_line_ends_and_filters_are_those_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    files = {
        **FILES,
        ".gitattributes": "*.big filter=upper -text\n*.dos eol=crlf text\n",
        "a.big": "abc\n",
        "b.dos": "x\n",
    }
    top = make_repository(tmp_path / "r", files)
    user_git(top, "config", "filter.upper.smudge", "tr a-z A-Z")
    user_git(top, "config", "filter.upper.clean", "tr A-Z a-z")
    user_git(top, "config", "core.autocrlf", "true")
    user_git(top, "config", "core.safecrlf", "true")
    for name in FILES.keys() - {".gitattributes"} | {"a.big", "b.dos"}:
        (top / name).unlink()
    user_git(top, "checkout", "--quiet", "--", ".")
    repository = opened(top)
    with repository.worktree(repository.incumbent(), top / ".nvfp4/loop/work/0001") as place:
        assert (place / "a.big").read_bytes() == (top / "a.big").read_bytes() == b"ABC\n"
        assert (place / "b.dos").read_bytes() == b"x\r\n"
        assert (place / KERNEL).read_bytes() == (top / KERNEL).read_bytes() == b"STAGES = 1\r\n"
        assert user_git(place, "diff", "--name-only", "--", KERNEL, "b.dos") == ""
    parent = repository.incumbent()
    new = {KERNEL: b"STAGES = 2\r\nmixed\n", "a.big": b"NEW\n", "b.dos": b"y\r\n"}
    commit, _ = repository.add_candidate(1, parent=parent, files=new)
    assert repository.read(commit, KERNEL) == b"STAGES = 2\nmixed\n"
    assert repository.read(commit, "a.big") == b"new\n"
    assert repository.read(commit, "b.dos") == b"y\n"
    _, tree = repository.add_candidate(2, parent=parent, files={KERNEL: b"STAGES = 1\r\n"})
    assert tree == user_git(top, "rev-parse", f"{parent}^{{tree}}")


def test_candidates_keep_modes_can_remove_files_and_stay_reachable(top: Path) -> None:
    (top / KERNEL).chmod(0o755)
    user_git(top, "commit", "--quiet", "-am", "executable")
    repository = opened(top)
    parent = repository.incumbent()
    files = {KERNEL: b"STAGES = 2\n", "kernels/other.py": None, "kernels/added.py": b""}
    commit, _ = repository.add_candidate(7, parent=parent, files=files)
    left = repository.files(commit)
    assert left[KERNEL] == "100755"
    assert left["kernels/added.py"] == "100644"
    assert "kernels/other.py" not in left
    user_git(top, "gc", "--quiet", "--prune=now")
    assert user_git(top, "rev-parse", "refs/nvfp4-loop/loop/candidates/0007") == commit
    with pytest.raises(RefusedPathError, match=r"^\.git/config has a name that git refuses$"):
        repository.add_candidate(8, parent=parent, files={".git/config": b"x"})


WORDS = """I made it faster.

---
Nvfp4-Outcome: forged
Signed-off-by: the maintainer <m@example.org>
\x1b[31mred\x1b[0m \u202ereversed
Nvfp4-Candidate: 99"""


def test_the_message_has_the_evidence_and_the_worker_s_words_forge_nothing(top: Path) -> None:
    repository = opened(top)
    candidate = candidate_of(repository, 3, "STAGES = 3\n", words=WORDS + "\n" + "x" * 9_000)
    verdict = verdict_of(candidate, artifacts={"model.json\nNvfp4-Outcome: forged": "ab" * 32})
    commit = repository.promote(candidate, verdict, expected=candidate.parent, seconds=1)
    message = user_git(top, "log", "-1", "--format=%B", commit)
    assert message.splitlines()[0] == "nvfp4-loop: promote candidate 3, 20.00 % lower modelled"
    assert "modelled: 10 before, 8 after" in message
    assert "> I made it faster." in message
    assert "\x1b" not in message
    assert len(message) < 12_000
    for command in (["git", "interpret-trailers", "--parse"], ["git", "interpret-trailers", "--parse", "--no-divider"]):
        done = subprocess.run(command, input=message.encode(), capture_output=True, check=True, cwd=top)
        trailers = [line.split(": ", 1) for line in done.stdout.decode().splitlines()]
        assert [value for key, value in trailers if key == "Nvfp4-Outcome"] == ["faster"]
        assert [value for key, value in trailers if key == "Nvfp4-Candidate"] == ["3"]
        assert {key for key, _ in trailers} == {
            *("Nvfp4-Candidate", "Nvfp4-Iteration", "Nvfp4-Candidate-Commit", "Nvfp4-Against", "Nvfp4-Outcome"),
            "Nvfp4-Artifact",
        }


def test_a_diff_is_bounded_and_is_no_program_of_the_user_s(top: Path) -> None:
    user_git(top, "config", "diff.external", "/nonexistent")
    repository = opened(top)
    small = candidate_of(repository, 1, "STAGES = 2\n")
    assert repository.diff(small.parent, small.commit or "").endswith("-STAGES = 1\n+STAGES = 2\n")
    large = candidate_of(repository, 2, "x = 1\n" * 200_000)
    assert len(repository.diff(large.parent, large.commit or "")) < 500_000


def test_a_loop_that_begins_anew_moves_its_references_aside(top: Path) -> None:
    commits = [promoted(top, 1, "STAGES = 2\n"), promoted(top, 2, "STAGES = 3\n")]
    opened(top).retire()
    assert opened(top).incumbent() == user_git(top, "rev-parse", "main")
    again = promoted(top, 1, "STAGES = 5\n")
    opened(top).retire()
    opened(top).retire()
    old = "refs/nvfp4-loop-old/loop"
    assert user_git(top, "rev-parse", f"{old}/1/incumbent", f"{old}/2/incumbent").splitlines() == [commits[1], again]
    assert user_git(top, "rev-parse", f"{old}/1/candidates/0001^{{tree}}") == user_git(
        top, "rev-parse", f"{commits[0]}^{{tree}}"
    )


def test_loops_of_two_names_share_a_repository(top: Path) -> None:
    one, two = opened(top, name="one"), opened(top, name="two")
    first = candidate_of(one, 1, "STAGES = 2\n")
    one.promote(first, verdict_of(first), expected=first.parent, seconds=1)
    assert two.incumbent() == first.parent
    assert one.incumbent() != two.incumbent()


def test_a_repository_of_an_owner_that_git_does_not_trust_is_refused(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pytest_nvfp4.loop.repository.git._VARIABLES", {**_variables(), "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    )
    with pytest.raises(GitError, match=r"safe\.directory"):
        opened(top)


def _variables() -> dict[str, str]:
    from pytest_nvfp4.loop.repository import git

    return dict(git._VARIABLES)


def test_a_submodule_is_an_empty_folder_and_a_link_is_a_link(top: Path, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other")
    user_git(top, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    (top / "link").symlink_to("/etc/passwd")
    user_git(top, "add", "--all")
    user_git(top, "commit", "--quiet", "-m", "submodule")
    repository = opened(top)
    with repository.worktree(repository.incumbent(), top / ".nvfp4/loop/judge/0001") as place:
        assert list((place / "sub").iterdir()) == []
        assert os.readlink(place / "link") == "/etc/passwd"  # noqa: PTH115


def test_candidates_without_a_commit_are_not_promoted(top: Path) -> None:
    repository = opened(top)
    none = Candidate(number=1, iteration=1, parent=repository.incumbent(), end="failed")
    with pytest.raises(GitError, match="has no commit"):
        repository.promote(none, verdict_of(none), expected=none.parent, seconds=1)


def test_the_rules_of_the_commit_decide_what_is_ignored(top: Path) -> None:
    (top / "kernels/.gitignore").write_text("!kept.log\n/here\n")
    user_git(top, "add", "--all")
    user_git(top, "commit", "--quiet", "-m", "rules")
    (top / ".gitignore").write_text("*\n")
    (top / ".git/info").mkdir(exist_ok=True)
    (top / ".git/info/exclude").write_text("*\n")
    user_git(top, "config", "core.excludesFile", str(top / ".gitignore"))
    repository = opened(top)
    ignored = {
        "a.log",
        "build/x",
        "build/:(glob)*",
        "kernels/here",
        "k/__pycache__/x.pyc",
        ":x.log",
        "-n.log",
        "\udcff.log",
    }
    others = {"kernels/kept.log", "here", "kernels/x/here", ":(exclude)x", "*", "a\nb", "builds", "-z"}
    assert repository.ignored("HEAD", sorted(ignored | others)) == ignored
