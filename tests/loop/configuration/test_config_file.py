"""The commented file says what every field means; read again, with or without its comments, it is the configuration."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_nvfp4.loop.configuration.config import LoopConfig
from pytest_nvfp4.loop.configuration.config_file import config_text, toml_value
from pytest_nvfp4.loop.configuration.load import parse_config

DEFAULT = LoopConfig.model_validate({"kernel": {"file": "k.py"}, "worker": {"command": ["agent"]}})
_KEY = re.compile(r"^#?(\w+) (?:= |is not set)")


def read(text: str) -> LoopConfig:
    return parse_config(text, source="c.toml")


def test_read_back_it_equals_the_defaults() -> None:
    assert read(config_text(DEFAULT)) == DEFAULT


def test_only_what_is_no_default_is_a_setting() -> None:
    lines = config_text(DEFAULT).splitlines()
    assert [line for line in lines if line and line[0] not in "#["] == ['file = "k.py"', 'command = ["agent"]']


def test_without_the_signs_it_equals_the_defaults_too() -> None:
    bare = re.sub(r"^#(\w+ = )", r"\1", config_text(DEFAULT), flags=re.MULTILINE)
    assert read(bare) == DEFAULT
    keys = bare.count(" = ") - bare.count("= value")
    assert keys > 50, "no setting was behind a sign"


def test_every_field_is_there_with_its_description() -> None:
    text = config_text(DEFAULT)
    for name, field in LoopConfig.model_fields.items():
        fields = getattr(field.annotation, "model_fields", None)
        block = text if fields is None else text.partition(f"\n[{name}]\n")[2].partition("\n[")[0]
        found = [match[1] for line in block.splitlines() if (match := _KEY.match(line))]
        if fields is not None:
            assert found == list(fields), name
            for key in fields.values():
                assert key.description


def test_each_description_stands_above_its_key() -> None:
    lines = config_text(DEFAULT).splitlines()
    at = lines.index("#timeout_s = 900.0")
    assert lines[at - 1] == "# Seconds until it is ended."
    assert lines[at + 1] == ""
    assert max(map(len, lines)) <= 120


def test_notes_stand_with_their_key() -> None:
    text = config_text(DEFAULT, notes={"worker.command": "a note\nof two [lines]", "kernel.file": "another"})
    assert "# a note of two [lines]\ncommand = " in text
    assert "# another\nfile = " in text
    assert read(text) == DEFAULT


@pytest.mark.parametrize("text", ["", "a\nb", 'say "x"', "\\", "\x7f", "\x00\x1f", "é😀\u2028", "'''", "#", "[x]"])
def test_any_text_is_kept(text: str) -> None:
    config = DEFAULT.model_copy(
        update={"worker": DEFAULT.worker.model_copy(update={"command": ("agent", text), "template": text})}
    )
    assert read(config_text(config)) == config


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_value_of_toml_is_read_back(text: str) -> None:
    config = DEFAULT.model_copy(update={"kernel": DEFAULT.kernel.model_copy(update={"config": text})})
    assert read(config_text(config)) == config
    assert "\n" not in toml_value(text)


def test_all_kinds_of_values_are_written() -> None:
    values = {
        "name": "x",
        "kernel": {"file": "k.py", "problems": ["a", "b"]},
        "worker": {"command": ["agent"], "network": True, "candidates": 3},
        "budget": {"dollars": 1e-7, "gpu_seconds": 1.0, "tokens": 5},
        "judge": {"remote": "modal", "skip_modelled_slower": False},
    }
    config = LoopConfig.model_validate(values)
    assert read(config_text(config)) == config
