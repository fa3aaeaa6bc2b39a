"""A configuration is read with its overrides; each fault names its line, its key and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.configuration.errors import ConfigError
from pytest_nvfp4.loop.configuration.load import load_config, parse_config

TEXT = """# a loop
name = "night"

[kernel]
file = "k.py"

[worker]
command = [
    "agent",  # timeout_s = 1
    "--do",
]
timeout_s = 100
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "k.py").write_text("def custom_kernel(data): ...\n")
    (tmp_path / "nvfp4-loop.toml").write_text(TEXT)
    return tmp_path


def wrong(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="c.toml", overrides=overrides)
    return list(caught.value.problems)


def test_a_file_is_read_with_defaults(root: Path) -> None:
    config = load_config(root)
    assert config.name == "night"
    assert config.worker.command == ("agent", "--do")
    assert config.worker.timeout_s == 100
    assert config.budget == LoopConfig.model_fields["budget"].default


def test_another_file_is_read(root: Path) -> None:
    (root / "other.toml").write_text(TEXT.replace("night", "day"))
    assert load_config(root, file=root / "other.toml").name == "day"


def test_overrides_win(root: Path) -> None:
    config = load_config(
        root,
        overrides=[
            "name=2026",
            "budget.iterations=7",
            "budget.minutes = 1.5",
            "worker.network=true",
            'worker.command=["a", "b c"]',
            "kernel.problems=96x128x256",
            "target.metric=counter:tma.load.bytes",
            "mode=dry-run",
            "target.threshold=8",
            "budget.iterations=8",
        ],
    )
    assert config.name == "2026"
    assert config.budget.iterations == 8
    assert config.budget.minutes == 1.5
    assert config.worker.network
    assert config.worker.command == ("a", "b c")
    assert config.kernel.problems == ("96x128x256",)
    assert config.target.metric == "counter:tma.load.bytes"
    assert config.mode == "dry-run"
    assert config.target.threshold == 8.0


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("budget.iteratons=1", "did you mean 'budget.iterations'?"),
        ("iterations=1", "did you mean 'budget.iterations'?"),
        ("zzz=1", "known are version, name"),
        ("budget=1", "the key 'budget' is unknown"),
        ("budget.iterations.x=1", "is unknown"),
        ("budget.iterations", "write it as section.key=value"),
        ("budget.iterations=", "has no value"),
        ("budget.iterations= ", "has no value"),
        ("budget.iterations=many", "'budget.iterations=many': has budget.iterations = 'many'"),
        ("budget.iterations=0", "greater than or equal to 1"),
        ("budget.iterations=true", "has budget.iterations = True"),
        ("budget.minutes=inf", "budget.minutes"),
        ("mode=fast", "has mode = 'fast'"),
        ("judge.gates=compile", "the gates compile and verify cannot be left out"),
        ("target.metric=measured", "needs device.name"),
        ("name=a/b", "has name = 'a/b'"),
    ],
)
def test_a_wrong_override_is_named(override: str, expected: str) -> None:
    (problem,) = wrong(TEXT, override)
    assert expected in problem


def test_no_override_can_smuggle_in_another_key() -> None:
    assert "another = 1" in wrong(TEXT, "budget.iterations=1\nanother = 1")[0]


def test_each_fault_of_a_file_names_its_line() -> None:
    text = TEXT.replace('"--do"', "7") + 'netwrok = true\n\n[budget]\niterations = "40"\n\n[bugdet]\nx = 1\n'
    problems = wrong(text)
    assert len(problems) == 4
    assert any(each.startswith("c.toml:8: has worker.command.1 = 7") for each in problems)
    assert any(each.startswith("c.toml:13: ") and "did you mean 'network'?" in each for each in problems)
    assert any(each.startswith("c.toml:16: has budget.iterations = '40'") for each in problems)
    assert any(each.startswith("c.toml:18: ") and "did you mean 'budget'?" in each for each in problems)


def test_what_is_missing_is_named() -> None:
    assert wrong('[worker]\ncommand = ["a"]\n') == ["c.toml: lacks kernel"]
    assert wrong('[kernel]\nproblems = ["a"]\n[worker]\ncommand = ["a"]\n') == ["c.toml:1: lacks kernel.file"]
    (problem,) = wrong('[kernel]\nfile = "k.py"\n')
    assert "worker.command is missing" in problem
    assert "mode = 'manual'" in problem


def test_what_is_no_toml_names_the_place() -> None:
    assert "line 2" in wrong("a = 1\nb = \n")[0]
    assert "nested too deeply" in wrong(f"a = {'[' * 100_000}")[0]


@pytest.mark.parametrize("section", [{"judge": {"remote": "modal"}}, {"device": {"name": "modal"}}])
def test_what_costs_money_needs_a_limit(section: dict[str, dict[str, str]]) -> None:
    ((name, values),) = section.items()
    ((key, value),) = values.items()
    (problem,) = wrong(TEXT, f"{name}.{key}={value}")
    assert f"{name}.{key} = 'modal' may cost money; set a ceiling: budget.dollars" in problem
    assert parse_config(TEXT, source="c", overrides=[f"{name}.{key}={value}", "budget.dollars=20"]).budget.dollars == 20
    for own in ("local", "cuda"):
        assert parse_config(TEXT, source="c", overrides=[f"device.name={own}"]).device.name == own


@pytest.mark.parametrize("name", ["none.py", "../k.py", "/k.py", ".", "./k.py", ""])
def test_a_kernel_is_a_file_of_the_repository(root: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"kernel\.file"):
        load_config(root, overrides=[f'kernel.file="{name}"'])


def test_an_absolute_kernel_is_refused(root: Path) -> None:
    with pytest.raises(ConfigError, match="must be a path relative to"):
        load_config(root, overrides=[f"kernel.file={root / 'k.py'}"])


def test_problems_must_exist(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"kernel\.problems: no problem is called 'tiny'"):
        load_config(root, overrides=["kernel.problems=tiny"])
    with pytest.raises(ConfigError, match=r"kernel\.verify: no problem is called 'tiny'"):
        load_config(root, overrides=["kernel.verify=tiny"])
    (root / "pyproject.toml").write_text("[tool.pytest_nvfp4]\nproblems.tiny = { m = 64, n = 128, k = 256 }\n")
    assert load_config(root, overrides=["kernel.problems=tiny"]).kernel.problems == ("tiny",)


def test_the_configuration_of_the_kernel_must_exist(root: Path) -> None:
    tables = "".join(f'[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nname = "{name}"\n' for name in ("one", "two"))
    (root / "pyproject.toml").write_text(tables)
    with pytest.raises(ConfigError, match=r"kernel\.config = '' .* are 'one', 'two'"):
        load_config(root)
    assert load_config(root, overrides=["kernel.config=two"]).kernel.config == "two"


def test_a_kernel_with_an_entry_is_refused(root: Path) -> None:
    (root / "pyproject.toml").write_text('[[tool.pytest_nvfp4.kernel]]\npath = "k.py"\nentry = "k.py::build"\n')
    with pytest.raises(ConfigError, match=r"'k\.py' has an entry .* custom_kernel\(data\) only"):
        load_config(root)


def test_a_file_that_is_missing_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nvfp4 loop init KERNEL"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="folder"):
        load_config(tmp_path, file=tmp_path)


def test_paths_are_relative_to_the_root(root: Path) -> None:
    config = load_config(root, overrides=['worker.readable=["data", "/x", "~/y"]', "reviewer.template=r.md"])
    assert config.worker.readable == (str(root / "data"), "/x", str(Path.home() / "y"))
    assert config.reviewer.template == str(root / "r.md")
    assert config.worker.template == ""


@given(st.text(min_size=1).filter(str.strip))
def test_any_text_is_a_value_of_a_text(text: str) -> None:
    """A quoted text is itself, and a text that is no TOML too, without the blanks around it."""
    quoted = "".join(f"\\U{ord(char):08x}" if not "\ud800" <= char <= "\udfff" else "?" for char in text)
    config = parse_config(TEXT, source="c", overrides=[f'kernel.config="{quoted}"'])
    assert config.kernel.config == "".join("?" if "\ud800" <= char <= "\udfff" else char for char in text)


@given(
    st.integers(1, 1_000_000),
    st.floats(0.001, 1e9),
    st.booleans(),
    st.lists(st.from_regex(r"[a-z {}\-]+", fullmatch=True)),
)
def test_values_of_toml_are_kept(count: int, minutes: float, flag: bool, words: list[str]) -> None:
    config = parse_config(
        TEXT,
        source="c",
        overrides=[
            f"budget.iterations={count}",
            f"budget.minutes={minutes!r}",
            f"worker.network={'true' if flag else 'false'}",
            f"worker.readable={words}",
        ],
    )
    assert (config.budget.iterations, config.budget.minutes, config.worker.network) == (count, minutes, flag)
    assert config.worker.readable == tuple(words)
