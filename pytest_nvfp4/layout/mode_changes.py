"""Changed modes of a layout, by role where roles are known."""

from __future__ import annotations

from typing import TypeAlias

from pytest_nvfp4.layout.algebra import modes
from pytest_nvfp4.layout.change import ModeChange
from pytest_nvfp4.layout.notation import AnyLayout, Layout
from pytest_nvfp4.layout.roles import Path, Roles, plain
from pytest_nvfp4.layout.tree import Tree, render_tree

_Mode: TypeAlias = "tuple[Tree, Tree]"


def changed_modes(
    old: AnyLayout, new: AnyLayout, *, old_roles: Roles | None, new_roles: Roles | None
) -> tuple[ModeChange, ...]:
    """Return the modes that differ, as deep as both nest alike.

    The unused stride of a mode of size 1 is reported only if nothing else differs. Equally many modes are paired in
    order. Otherwise they are paired by role if both sides have roles; without roles the result is one change of the
    whole layout.
    """
    before, after = modes(plain(old)), modes(plain(new))
    roles = new_roles or old_roles
    if len(before) == len(after):
        changes: list[ModeChange] = []
        for at, (left, right) in enumerate(zip(before, after, strict=True)):
            changes += _within(left, right, (at,), roles)
        return _substantial(changes)
    if old_roles is None or new_roles is None:
        return (ModeChange((), None, str(plain(old)), str(plain(new))),)
    return _by_role(before, after, old_roles, new_roles)


def _by_role(
    before: tuple[Layout, ...], after: tuple[Layout, ...], old_roles: Roles, new_roles: Roles
) -> tuple[ModeChange, ...]:
    left = dict(zip(old_roles.modes, enumerate(before), strict=True))
    right = dict(zip(new_roles.modes, enumerate(after), strict=True))
    changes: list[ModeChange] = []
    for role in dict.fromkeys((*new_roles.modes, *old_roles.modes)):
        was, now = left.get(role), right.get(role)
        if was is None and now is not None:
            changes.append(ModeChange((now[0],), role, None, str(now[1])))
        elif now is None and was is not None:
            changes.append(ModeChange((was[0],), role, str(was[1]), None))
        elif was is not None and now is not None:
            changes += _within(was[1], now[1], (now[0],), new_roles)
    return _substantial(changes)


def _substantial(changes: list[ModeChange]) -> tuple[ModeChange, ...]:
    """Return the changes without those of a mode that has size 1 on both sides, unless there are no others."""
    substantial = [change for change in changes if not (_is_single(change.old) and _is_single(change.new))]
    return tuple(substantial or changes)


def _is_single(mode: str | None) -> bool:
    return mode is not None and mode.startswith("1:")


def _within(old: Layout, new: Layout, path: Path, roles: Roles | None) -> list[ModeChange]:
    """Return the changes inside one mode: of its parts if both have equally many, else of the mode."""
    return _changes_between((old.shape, old.stride), (new.shape, new.stride), path, roles)


def _changes_between(old: _Mode, new: _Mode, path: Path, roles: Roles | None) -> list[ModeChange]:
    # Pairs of shape and stride avoid the repeated congruence check of Layout.
    if old == new:
        return []
    (old_shape, old_stride), (new_shape, new_stride) = old, new
    nested = isinstance(old_shape, tuple) and isinstance(new_shape, tuple) and len(old_shape) == len(new_shape) > 0
    if nested:
        parts = zip(zip(old_shape, old_stride, strict=True), zip(new_shape, new_stride, strict=True), strict=True)  # type: ignore[arg-type]
        return [
            change
            for at, (left, right) in enumerate(parts)
            for change in _changes_between(left, right, (*path, at), roles)
        ]
    role = None if roles is None else roles.at(path)
    return [ModeChange(path, role, _mode_text(*old), _mode_text(*new))]


def _mode_text(shape: Tree, stride: Tree) -> str:
    return f"{render_tree(shape)}:{render_tree(stride)}"
