"""A wall around a process that runs a kernel's code: what it may read, write, call and reach.

``fork_behind(wall)`` and ``move_behind(wall)`` give a process namespaces of its own and an end that leaves no process;
``enter(wall)`` binds the process that calls it. Each mechanism is one module; the running kernel may lack any of them.
Everything is plain system calls: a helper such as bubblewrap would have to be installed, needs a user namespace even
for what Landlock does without one, and starts a program anew, where a worker is forked with its imports done.
"""

from pytest_nvfp4.isolation.wall.description import (
    NAMESPACES,
    WALL_VARIABLE,
    Part,
    Wall,
    WallError,
)
from pytest_nvfp4.isolation.wall.enter import Surroundings, enter
from pytest_nvfp4.isolation.wall.supervisor import enter_from_environment, fork_behind, move_behind

__all__ = [
    "NAMESPACES",
    "WALL_VARIABLE",
    "Part",
    "Surroundings",
    "Wall",
    "WallError",
    "enter",
    "enter_from_environment",
    "fork_behind",
    "move_behind",
]
