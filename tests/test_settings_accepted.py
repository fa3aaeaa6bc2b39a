"""Accepted findings in the settings: what is read, what is refused, and how an entry is written."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path

import pytest

from pytest_nvfp4.device.worker.sim_findings import _WARNING_KINDS
from pytest_nvfp4.settings import ACCEPTABLE, AcceptedFinding, SettingsError, load
from pytest_nvfp4.settings.accepting import with_accepted

ENTRY = {
    "check": '"races"',
    "kernel": '"./kernels/k.py"',
    "kind": '"race"',
    "text": '"c[0] = 1"',
    "reason": '"both are one"',
    "date": "2026-09-01",
    "expires": "2026-12-01",
}
FINDING = AcceptedFinding(
    "races", "kernels/k.py", "race", "c[0] = 1", "both are one", datetime.date(2026, 9, 1), datetime.date(2026, 12, 1)
)


def read(folder: Path, **changes: str | None) -> tuple[AcceptedFinding, ...]:
    lines = [f"{key} = {value}" for key, value in {**ENTRY, **changes}.items() if value is not None]
    (folder / "pyproject.toml").write_text("[[tool.pytest_nvfp4.accepted]]\n" + "\n".join(lines))
    return load(folder).accepted


def test_an_entry_is_read_and_is_of_its_check_and_kernel(tmp_path: Path) -> None:
    assert read(tmp_path) == (FINDING,)
    (entry,) = read(tmp_path, others='["wait(full)"]', places="2")
    assert (entry.others, entry.places) == (("wait(full)",), 2)
    assert entry.expired(datetime.date(2026, 12, 2))
    assert not entry.expired(datetime.date(2026, 12, 1))
    settings = load(tmp_path)
    assert settings.accepted_of(tmp_path / "kernels/k.py", "races") == (entry,)
    assert settings.accepted_of(tmp_path / "kernels/k.py", "verify") == ()
    assert settings.accepted_of(tmp_path / "k.py", "races") == ()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("kind", '"mismatch"', "a finding of this kind is never accepted"),
        ("kind", '"deadlock"', "a finding of this kind is never accepted"),
        ("kind", '"never-written"', "a finding of this kind is never accepted"),
        ("kind", '"cheat"', "a finding of this kind is never accepted"),
        ("reason", None, "the reason is expected"),
        ("reason", '"  "', "the reason is expected"),
        ("expires", None, "a date such as"),
        ("expires", '"2026-12-01"', "without quotes"),
        ("expires", "2026-12-01T00:00:00Z", "a date such as"),
        ("expires", "2026-08-31", "not before its date"),
        ("places", "0", "at least 1"),
        ("places", "true", "at least 1"),
        ("text", "1", "the text of the line"),
        ("lines", "1", "unknown key 'lines'"),
    ],
)
def test_what_cannot_be_accepted_is_refused_with_the_key(
    tmp_path: Path, key: str, value: str | None, said: str
) -> None:
    with pytest.raises(
        SettingsError, match=r"pyproject\.toml: \[\[tool\.pytest_nvfp4\.accepted\]\] number 1"
    ) as raised:
        read(tmp_path, **{key: value})
    assert said in str(raised.value)


def test_no_fault_and_no_wrong_result_is_acceptable() -> None:
    never = {"mismatch", "never-written", "deadlock", "out-of-bounds", "in-flight", "misaligned", "cheat", "origin"}
    never |= {"crash", "timeout", "internal", "inputs", "answer", "compile"}
    assert not ACCEPTABLE & never
    assert {"race-warning", "written-twice"} <= _WARNING_KINDS, "warnings by name"


TEXT = """\
# the owner's words
[project]
name = "x"   # stays

[[tool.pytest_nvfp4.accepted]]  # an old one
check = "races"
kernel = "kernels/k.py"
kind = "race"
text = "c[0] = 1"
reason = "old"
date = 2025-01-01
expires = 2025-02-01

[[tool.pytest_nvfp4.kernel]]
path = "kernels/k.py"  # stays too
"""


def test_an_entry_is_appended_and_replaces_the_one_of_the_same_finding(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    other = AcceptedFinding(
        **{name: getattr(FINDING, name) for name in ("check", "kernel", "kind", "date", "expires")},
        text='say("\\\\", \'é\', "\x7f")',
        reason="[[tool.x]]",
        others=("a", "b"),
        places=3,
    )
    text = with_accepted(TEXT, [FINDING, other], file=file)
    assert "# an old one" not in text
    assert text.startswith(TEXT[: TEXT.index("[[tool")])
    assert TEXT[TEXT.index("[[tool.pytest_nvfp4.kernel]]") :] in text
    file.write_text(text)
    assert load(tmp_path).accepted == (FINDING, other)
    assert with_accepted("", [FINDING], file=file).startswith("[[tool.pytest_nvfp4.accepted]]\ncheck = ")
    assert tomllib.loads(with_accepted("[tool.pytest_nvfp4]\narch = 'sm_100a'", [FINDING], file=file))


@pytest.mark.parametrize(
    "text",
    [
        "[tool]\npytest_nvfp4 = { arch = 'sm_100a' }\n",
        "[tool.pytest_nvfp4]\naccepted = []\n",
        TEXT.replace('reason = "old"', 'reason = """\n[old]\n"""'),
    ],
    ids=["an inline table", "an array", "a text that looks like a table"],
)
def test_a_form_that_cannot_be_extended_is_left_with_the_entry_to_add(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError, match="add this yourself") as raised:
        with_accepted(text, [FINDING], file=tmp_path / "pyproject.toml")
    assert 'reason = "both are one"' in str(raised.value)
