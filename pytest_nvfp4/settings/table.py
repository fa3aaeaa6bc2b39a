"""Reading of the values of one TOML table."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_nvfp4.contracts.own.files import RETURNING, is_definition
from pytest_nvfp4.contracts.registry import contract_named
from pytest_nvfp4.problem import ProblemError
from pytest_nvfp4.settings.error import SettingsError

ANY = re.compile(r".+", re.DOTALL)


class TableReader:
    """Reader of one table.

    Its methods return the value of a key, or a default. They raise SettingsError with the file, the table and the key.
    """

    def __init__(self, file: Path, where: str, table: Mapping[str, Any]) -> None:
        self._file, self._where, self._table = file, where, table

    def fail(self, key: str, value: object, expected: str) -> SettingsError:
        """Return the error of a value that is not usable."""
        return SettingsError(f"{self._file}: {self._where}: {key} = {value!r} is not usable: {expected}")

    def contract(self, default: str | None) -> str | None:
        """Return the name of a contract, or the absolute place of the user's own one."""
        value = self.text("contract", ANY, "a name or FILE::NAME is expected", None)
        if value is None:
            return default
        file, _, name = value.partition("::")
        if not name and not file.endswith(".py") and not is_definition(file):
            try:
                return contract_named(value).name
            except ProblemError as error:
                raise self.fail("contract", value, f"{error}, or FILE::NAME for one of your own") from error
        path = (self._file.parent / Path(file).expanduser()).resolve()
        if not path.is_file() or (name and not name.isidentifier()):
            raise self.fail(
                "contract", value, f"{path} is no file" if name.isidentifier() else "FILE::NAME is expected"
            )
        if is_definition(file) and name not in ("", RETURNING):
            raise self.fail("contract", value, f"a definition stands alone, or {file}::{RETURNING}")
        return f"{path}::{name}"

    def check_keys(self, known: Sequence[str]) -> None:
        """Raise SettingsError for a key that is not known."""
        if "exercise" in self._table:
            raise self.fail(
                "exercise",
                self._table["exercise"],
                'it is replaced by a contract of your own, contract = "FILE::NAME" with call = "FILE::FUNCTION" '
                "(nvfp4 guide contracts)",
            )
        for key in self._table:
            if key not in known:
                raise SettingsError(
                    f"{self._file}: {self._where}: unknown key {key!r}; known are {', '.join(sorted(known))}"
                )

    def text(self, key: str, pattern: re.Pattern[str], expected: str, default: str | None) -> str | None:
        """Return a text that matches a pattern."""
        value = self._table.get(key, default)
        if value is not None and (not isinstance(value, str) or not pattern.fullmatch(value)):
            raise self.fail(key, value, expected)
        return value

    def flag(self, key: str, default: bool | None) -> bool | None:
        """Return true or false."""
        value = self._table.get(key, default)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, value, "true or false is expected")
        return value

    def texts(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return the texts of a list, or a single text."""
        value = self._table.get(key)
        if value is None:
            return default
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) and item for item in items):
            raise self.fail(key, value, "a list of strings is expected")
        return tuple(items)

    def date(self, key: str) -> datetime.date:
        """Return a date, which TOML writes as 2027-01-31."""
        value = self._table.get(key)
        if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
            raise self.fail(key, value, "a date such as 2027-01-31, without quotes, is expected")
        return value

    def count(self, key: str, default: int) -> int:
        """Return a whole number, at least 1."""
        value = self._table.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fail(key, value, "a whole number, at least 1, is expected")
        return value

    def paths(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return paths relative to this file as absolute ones, each of which must exist."""
        if key not in self._table:
            return default
        paths = [(self._file.parent / Path(text).expanduser()).resolve() for text in self.texts(key, ())]
        for path in paths:
            if not path.exists():
                raise self.fail(key, str(path), "there is no such file or folder")
        return tuple(map(str, paths))

    def share(self, key: str, default: float) -> float:
        """Return ``"10%"`` as 0.1 and ``"any"`` as infinity."""
        value = self._table.get(key)
        share = default if value is None else _share(value)
        if share is None:
            raise self.fail(key, value, 'a share such as "10%", or "any", is expected')
        return share

    def tolerances(self, key: str, default: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
        """Return shares by the patterns of counters, those of the default included."""
        table = self._table.get(key)
        if table is None:
            return default
        if not isinstance(table, dict):
            raise self.fail(key, table, 'a table of counters is expected, such as { "instructions*" = "5%" }')
        tolerances = dict(default)
        for name, value in table.items():
            share = _share(value)
            if share is None:
                raise self.fail(f"{key}.{name}", value, 'a share such as "5%", or "any", is expected')
            tolerances[name] = share
        return tuple(tolerances.items())


def _share(value: object) -> float | None:
    """Return ``"5%"`` as 0.05 and ``"any"`` as infinity; None for another value."""
    if value == "any":
        return math.inf
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*%", value) if isinstance(value, str) else None
    return float(match[1]) / 100 if match else None
