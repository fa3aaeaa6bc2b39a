"""The error of a setting that cannot be used."""

from __future__ import annotations


class SettingsError(ValueError):
    """A setting cannot be used. The message names the file, the key, the value and what is expected."""
