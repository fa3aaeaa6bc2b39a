"""Every command of the tree: options of one name mean one thing, and commands of one kind have the same options."""

from collections.abc import Iterator

import click
import pytest

from pytest_nvfp4.cli.app import app


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        if not isinstance(command, click.Group) or any(opt.opts[0] == "--brief" for opt in command.params):
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(app))
PASSED_ON = {"check", "watch"}
"""They pass options to pytest."""
PROGRAM = {
    *PASSED_ON,
    *("completion", "init", "debug", "trace", "eval", "exec", "mcp", "bench-self"),
    *("loop init", "loop run", "loop watch", "loop stop", "loop revert", "loop check", "loop progress"),
}
"""Their text is that of a program, a protocol or a dialogue, so that they have ``--json`` at most."""
COMPILES = {
    *("layouts", "diff", "insights", "tmem", "epilogue", "prove scale-factors"),
    *("compile", "trace", "ptx", "sass", "upgrade"),
}
CALLS = {"run", "debug", "cost", "model time", "regions", "profile run", "prove pipeline"}
"""They call a kernel as its contract does, so that no entry compiles it."""


def options(name: str) -> dict[str, click.Option]:
    return {flag: each for each in COMMANDS[name].params if isinstance(each, click.Option) for flag in each.opts}


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - PROGRAM))
def test_a_command_with_a_result_writes_it_in_every_form(name: str) -> None:
    assert {"--format", "--json", "--md", "--html", "--output"} <= options(name).keys()


def test_the_others_have_json() -> None:
    assert [name for name in sorted(PROGRAM - {"completion"}) if "--json" not in options(name)] == []


@pytest.mark.parametrize("name", sorted(COMPILES | CALLS))
def test_a_command_with_a_kernel_takes_how_to_compile_it(name: str) -> None:
    assert {"--problem", "--arch", "--compile-option", "--config", "--timeout"} <= options(name).keys()
    assert ("--entry" in options(name)) == (name in COMPILES)


def test_every_command_with_a_kernel_is_in_one_of_the_two_sets() -> None:
    known = COMPILES | CALLS | PASSED_ON | {"accept", "history", "eval", "bench-self", "loop init"}
    takes = {
        name
        for name, command in COMMANDS.items()
        for each in command.params
        if isinstance(each, click.Argument) and each.name in ("kernel", "old", "source")
    }
    assert takes - {"profile diff"} <= known


ONE_MEANING = (
    *("--json", "--md", "--csv", "--html", "--output", "--format", "--out", "--entry", "--arch", "--config"),
    *("--compile-option", "--timeout", "--race-warnings", "--remote-max-cost", "--gpu", "--protected", "--fail-on"),
)
OTHERWISE = {
    ("--html", "check"): "passed on to pytest",
    ("--html", "watch"): "passed on to pytest",
    ("--entry", "check"): "passed on to pytest",
    ("--entry", "watch"): "passed on to pytest",
    ("--arch", "check"): "passed on to pytest",
    ("--arch", "watch"): "passed on to pytest",
    ("--arch", "doctor"): "has the default sm_100a",
}


@pytest.mark.parametrize("flag", ONE_MEANING)
def test_an_option_of_one_name_takes_one_kind_of_value(flag: str) -> None:
    found = {
        name: (each.is_flag, each.multiple, each.nargs)
        for name in COMMANDS
        if (each := options(name).get(flag)) is not None and (flag, name) not in OTHERWISE
    }
    assert len(set(found.values())) == 1, found


def test_an_option_has_no_second_name_by_which_another_command_means_something_else() -> None:
    names: dict[str, set[tuple[str, ...]]] = {}
    for command in COMMANDS.values():
        for each in command.params:
            if isinstance(each, click.Option):
                for flag in each.opts:
                    names.setdefault(flag, set()).add(tuple(sorted(each.opts)))
    assert {flag: forms for flag, forms in names.items() if len(forms) > 1 and flag != "--out"} == {}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_names_the_exit_codes(name: str) -> None:
    command = COMMANDS[name]
    assert "xit code" in f"{command.help} {command.epilog}", name
    assert command.help
    undocumented = [each.opts[0] for each in command.params if isinstance(each, click.Option) and not each.help]
    assert undocumented == []
