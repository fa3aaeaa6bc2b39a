"""Options that name a tile."""

from __future__ import annotations

from functools import wraps
from typing import Any

import click

from pytest_nvfp4.cli.errors import InputError
from pytest_nvfp4.cli.options import Function, add_options
from pytest_nvfp4.tmem.columns import MmaTile, TmemError


def numbers(text: str, *, count: int, option: str, form: str) -> tuple[int, ...]:
    """Parse ``count`` non-negative integers separated by commas or ``x``.

    Raises:
        InputError: The text is something else; the message shows ``form``.
    """
    parts = text.replace("x", ",").split(",")
    if len(parts) != count or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise InputError(f"{option} {text!r} is not {form}")
    return tuple(int(part) for part in parts)


def tile_of(text: str, *, ctas: int, stages: int, sf_vector: int) -> MmaTile:
    """Return the tile of ``--tile`` and the options beside it.

    Raises:
        InputError: The text is not M,N,K, or no block-scaled MMA has this tile.
    """
    m, n, k = numbers(text, count=3, option="--tile", form="M,N,K, such as 128,256,256")
    try:
        return MmaTile(m, n, k, ctas, stages, sf_vector)
    except TmemError as error:
        raise InputError(f"--tile {text}: {error}") from error


def tile_options(function: Function) -> Function:
    """Add ``--tile``, ``--stages``, ``--ctas`` and ``--sf-vector``."""
    options = (
        click.option("--tile", metavar="M,N,K", help="Tile in place of a kernel, over all CTAs that share it."),
        click.option(
            "--stages",
            type=click.IntRange(1, 16),
            multiple=True,
            metavar="S",
            help="Number of accumulators; may be repeated.  [default: every number from 1 that fits]",
        ),
        click.option(
            "--ctas", type=click.Choice(["1", "2"]), default="1", show_default=True, help="CTAs that share one MMA."
        ),
        click.option(
            "--sf-vector",
            type=click.Choice(["16", "32"]),
            default="16",
            show_default=True,
            help="Elements of K per scale factor: 16 for NVFP4, 32 for MXFP4.",
        ),
    )

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, ctas=int(kwargs.pop("ctas")), sf_vector=int(kwargs.pop("sf_vector")), **kwargs)

    return add_options(call, options)
