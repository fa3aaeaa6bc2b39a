"""``nvfp4 model KERNEL --tune NAME=V1,V2``: constants of a kernel with other values, verified and ranked.

Each combination of values is a copy of the kernel's text with other constants (`toolchain.module_constants`); the file
itself is not touched. A combination is compiled, verified on a small problem by the exact oracle, and modelled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.model.page import micro
from pytest_nvfp4.cli.simulation import Runnable
from pytest_nvfp4.cores import cores
from pytest_nvfp4.report.document import Cell, Column, Styled, Table
from pytest_nvfp4.toolchain.module_constants import ConstantError, Value, constants, parse_value, same, with_constants

MOST_VARIANTS = 64
Constants = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with some values of its constants.

    Attributes:
        values: The values of the tuned constants.
        subject: The kernel with these values.
        as_it_is: Whether they are those of the file.
    """

    values: Constants
    subject: Runnable
    as_it_is: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a variant: its modelled time, or why it has none."""

    us: float | None
    bound: str = ""
    reason: str = ""


def parse(texts: Sequence[str]) -> dict[str, list[Value]]:
    """Return the values to try by constant, from ``NAME=V1,V2``.

    Raises:
        InputError: A text has another form, a name is given twice, or there are too many combinations.
    """
    wanted: dict[str, list[Value]] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        parts = [part.strip() for part in values.split(",")]
        if not separator or not name.strip().isidentifier() or not all(parts):
            raise InputError(f"--tune {text!r} must be NAME=VALUE,VALUE..., such as NUM_STAGES=2,3")
        if name.strip() in wanted:
            raise InputError(f"--tune names {name.strip()} twice; give all of its values at once")
        own = wanted[name.strip()] = list[Value]()
        for value in map(parse_value, parts):
            if not any(same(value, known) for known in own):
                own.append(value)
    count = 1
    for values_of in wanted.values():
        count *= len(values_of)
    if count > MOST_VARIANTS:
        raise InputError(f"--tune asks for {count} combinations; at most {MOST_VARIANTS} are tried at once")
    return wanted


def variants(subject: Runnable, wanted: Mapping[str, Sequence[Value]]) -> list[Variant]:
    """Return the kernel as it is, and every combination of values.

    Raises:
        InputError: A name is no constant of the kernel's file, or a value is of another type.
    """
    source = next(file.text for file in subject.spec.files if file.path == subject.spec.main)
    try:
        known = constants(source)
        made = [_variant(subject, source, {})]
        now = {name: known[name].value for name in wanted if name in known}
        made[0] = replace(made[0], values=now)
        for values in itertools.product(*wanted.values()):
            chosen = dict(zip(wanted, values, strict=True))
            variant = _variant(subject, source, chosen)
            if not all(same(value, now[name]) for name, value in chosen.items()):
                made.append(variant)
    except (ConstantError, SyntaxError, UnicodeEncodeError) as error:
        raise InputError(f"{subject.label}: --tune {error}") from error
    return made


def _variant(subject: Runnable, source: str, values: Constants) -> Variant:
    spec = subject.spec
    text = with_constants(source, values)
    files = tuple(file.with_text(text) if file.path == spec.main else file for file in spec.files)
    return Variant(values, replace(subject, spec=spec.model_copy(update={"files": files})), not values)


def tried(made: Sequence[Variant], attempt: Callable[[Variant], Outcome]) -> list[tuple[Variant, Outcome]]:
    """Return the outcome of every variant, the fastest modelled one first and those without a time last.

    Args:
        made: The variants; they are tried on all cores.
        attempt: Verifies and models a variant.
    """
    with ThreadPoolExecutor(max_workers=min(cores(), len(made))) as pool:
        found = list(zip(made, pool.map(attempt, made), strict=True))
    return sorted(found, key=lambda pair: (pair[1].us is None, pair[1].us or 0.0))


def table(found: Sequence[tuple[Variant, Outcome]]) -> Table:
    """Return the variants as rows, in their order."""
    base = next((outcome.us for variant, outcome in found if variant.as_it_is), None)
    names = list(found[0][0].values)
    columns = (
        *(Column(name, right=True, key=name) for name in names),
        Column("modelled", "us", right=True, key="modelled_us"),
        Column("difference", right=True, key="difference"),
        Column("bound by", key="bound"),
        Column("result", key="result"),
    )
    rows: list[list[Cell]] = []
    for variant, outcome in found:
        values: list[Cell] = [str(variant.values[name]) for name in names]
        if outcome.us is None:
            rows.append([*values, None, None, None, Styled(outcome.reason, "bad")])
            continue
        difference = None if base is None or variant.as_it_is else f"{100 * (outcome.us / base - 1):+.1f} %"
        result = "right, as it is" if variant.as_it_is else "right"
        rows.append([*values, micro(outcome.us), difference, outcome.bound, result])
    return Table(columns, rows)


def as_data(found: Sequence[tuple[Variant, Outcome]]) -> list[dict[str, Any]]:
    """Return the variants as JSON-ready values, in their order."""
    return [
        {
            "constants": dict(variant.values),
            "as_it_is": variant.as_it_is,
            "modelled_us": outcome.us,
            "bound": outcome.bound,
            "reason": outcome.reason,
        }
        for variant, outcome in found
    ]
