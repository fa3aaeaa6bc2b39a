"""What ``nvfp4 exec --mount`` never sends: files behind links, and credentials by their names and contents."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from pytest_nvfp4.cli import mounts
from pytest_nvfp4.cli.credentials import content_like_one, named_like_one
from pytest_nvfp4.cli.errors import InputError
from tests.cli.helpers import ROOT, git

# Put together here, so that no scanner of this repository finds them.
JOINED = "".join
CONTENTS = [
    JOINED(["-----BEGIN OPENSSH PRI", "VATE KEY-----\nb3Blbn"]),
    JOINED(['{"type": "external_', 'account", "audience": "a"}']),
    JOINED(["-----BEGIN PGP PRI", "VATE KEY BLOCK-----"]),
    JOINED(["key = AKI", "A2E0A8F3B244C9986"]),
    JOINED(["aws_secret_", "access_key = wJalrXUtnFEMI/K7MDENG+bPxRfiCYzzzzzzzzzz"]),
    JOINED(["x = 'gh", "p_0123456789abcdefghijABCDEFGHIJ012345'"]),
    JOINED(['{"type": "service_', 'account", "project_id": "p"}']),
    JOINED(["https://me:s3cr3t", "-word@git.example.org/x.git"]),
    JOINED(["MODAL_TOKEN_ID=a", "k-0123456789abcdefghijAB"]),
    JOINED(["//registry.example.org/:_auth", "Token=abc"]),
    JOINED(["users:\n- user:\n    client-key-", "data: LS0tLS1"]),
    JOINED(['{"auths": {"https://index.docker.io/v1/": {"', 'auth": "dXNlcjpwYXNz"}}}']),
    JOINED(["export SERVICE_API_", "KEY=0f4b9a77c3d84d2e9a11"]),
    JOINED(["eyJhbGciOiJIUzI1NiJ9.ey", "JzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"]),
]
INNOCENT = [
    'url = f"https://{user}:{password}@host/"',
    "clone https://user:password@example.org/x.git",
    "token = tokenizer.next_token(stream)",
    "password: <your password>\nsecret: ${{ secrets.DEPLOY_TOKEN }}",
    "a mask-of-0123456789abcdefghijABCD is no key",
    "http://localhost:8080/path@version",
    *(piece * 20_000 for piece in ("token", "a.", "eyJ-")),  # a search of quadratic time would take minutes
]


@pytest.mark.parametrize("text", CONTENTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_contents_of_credentials(text: str, encoding: str) -> None:
    assert content_like_one(text.encode(encoding), suffix=".cfg") is not None


@pytest.mark.parametrize("text", INNOCENT)
def test_contents_that_are_none(text: str) -> None:
    assert content_like_one(text.encode(), suffix=".cfg") is None


def test_names_of_credentials() -> None:
    secret = (
        ".envrc .pgpass kubeconfig kubeconfig-prod prod.kubeconfig service-account.json my_service_account_x.json "
        "a.pem token deploy_key deploy_key.pub ci-deploy-key .aws/config .docker/config.json a/secrets/b.txt "
        "x/.KUBE/config a/.ssh/known_hosts .Env prod.env application_default_credentials.json gcloud/x "
        "terraform.tfstate host_ed25519 gha-creds-1a2b3c.json .envrc.local rclone.conf"
    )
    for name in secret.split():
        assert named_like_one(PurePosixPath(name)), name
    for name in ("tokenizer.py", "token.py", "credentials.py", "environment.py", "aws.py", "docker/Dockerfile", "a/b"):
        assert not named_like_one(PurePosixPath(name)), name


def test_no_link_leads_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside, root = tmp_path / "outside", tmp_path / "repository"
    outside.mkdir()
    (outside / "x.txt").write_text("outside")
    (root / "real").mkdir(parents=True)
    git("init", "-q", cwd=root)
    (root / ".gitignore").write_text("ignored\n")
    for name in ("real/a.txt", "plain.txt", "ignored"):
        (root / name).write_text(name)
    git("add", "real/a.txt", cwd=root)
    os.link(root / "plain.txt", root / "second name.txt")
    links = {"in.txt": "plain.txt", "out.txt": outside / "x.txt", "folder": outside, "git.txt": ".git/config"}
    for name, target in {**links, "hidden.txt": "ignored", "absolute.txt": root / "plain.txt", "gone": "none"}.items():
        (root / name).symlink_to(target)
    # Git lists what it tracks below a folder that has been replaced by a link since.
    (root / "real" / "a.txt").unlink()
    (root / "real").rmdir()
    (outside / "a.txt").write_text("outside")
    (root / "real").symlink_to(outside)
    expected = dict.fromkeys(("plain.txt", "second name.txt", "in.txt", "absolute.txt"), b"plain.txt")
    files = mounts.repository_files(root)
    assert files == {**expected, ".gitignore": b"ignored\n"}
    said = capsys.readouterr().err
    assert "links to files that are not mounted: git.txt, hidden.txt, out.txt, real/a.txt" in said
    assert set(mounts.mount(f"{root}:d")) == {
        f"d/{name}" for name in (*expected, ".gitignore", "ignored", "hidden.txt")
    }


def test_credentials_are_sent_only_if_each_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / ".aws"
    (root / "deep").mkdir(parents=True)
    (root / "plain").write_text("by its folder's name")
    assert mounts.mount(f"{root}:d") == {}
    root = root.rename(tmp_path / "data")
    (root / "deep" / "settings").write_text(CONTENTS[0])
    (root / "innocent").symlink_to("deep/.pgpass")
    (root / "deep" / ".pgpass").write_text("x")
    assert set(mounts.mount(f"{root}:d")) == {"d/plain"}
    said = capsys.readouterr().err
    assert "d/deep/.pgpass" in said
    assert "d/deep/settings (a private key)" in said
    assert "--mount-secret" in said
    named = mounts.Named.of([str(root / "deep" / "settings")])
    assert set(mounts.mount(f"{root}:d", named)) == {"d/plain", "d/deep/settings"}
    named.check_used()
    with pytest.raises(InputError, match="is not among the files"):
        mounts.Named.of([__file__]).check_used()
    with pytest.raises(InputError, match="no such file"):
        mounts.Named.of([str(root)])


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x").write_bytes(b"12345")
    assert mounts.mount(f"{tmp_path}:.") == {"x": b"12345"}
    monkeypatch.setattr(mounts, "MAX_BYTES", 4)
    with pytest.raises(InputError, match=r"the largest are x \(5 B\)"):
        mounts.mount(f"{tmp_path}:.")


def test_this_package_is_mounted_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """The negative control: ordinary source is not taken for credentials."""
    folder = ROOT / "pytest_nvfp4" / "device"
    assert len(mounts.mount(f"{folder}:.")) == sum(
        path.is_file() and "__pycache__" not in path.parts for path in folder.rglob("*")
    )
    assert "not mounted" not in capsys.readouterr().err


def test_where_a_missing_module_lies(tmp_path: Path) -> None:
    program = tmp_path / "pkg" / "sub" / "program.py"
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    (tmp_path / "pkg" / "helper.py").touch()
    (tmp_path / "pkg" / "sub" / "of.py").touch()

    def advice(last: str) -> str:
        return mounts.not_found(program, f"a warning\n  File x, in <module>\n{last}\n")

    assert advice("ModuleNotFoundError: No module named 'helper'").endswith(f"--mount-dir {tmp_path / 'pkg'}:.")
    assert advice("ModuleNotFoundError: No module named 'pkg.sub.of'").endswith(f"--mount-dir {tmp_path}:.")
    assert advice("ModuleNotFoundError: No module named 'other'") == ""
    assert advice("ModuleNotFoundError: No module named 'pkg.numpy'") == ""  # the folder has the name of a package
    assert advice("ValueError: No module named 'helper'") == ""
