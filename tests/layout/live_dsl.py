"""Answers layout questions with the installed CuTe DSL: JSON cases on stdin, JSON answers (or null) on stdout."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ.update(CUTE_DSL_ARCH="sm_100a", CUTE_DSL_DRYRUN="1", CUTE_DSL_DISABLE_FILE_CACHING="1")

import cutlass.cute as cute

CASES = json.load(sys.stdin)
ANSWERS: list = []


def nested(tree: Any) -> Any:
    return tuple(map(nested, tree)) if isinstance(tree, list) else tree


def layout(pair: list[Any]) -> cute.Layout:
    shape, stride = map(nested, pair)
    return cute.make_layout(shape, stride=stride)


def answer(case: list[Any]) -> str:
    name, *arguments = case
    operands = [layout(argument) if isinstance(argument, list) else argument for argument in arguments]
    if name == "swizzled":
        bits, base, shift, outer, index = operands
        composed = cute.make_composed_layout(cute.make_swizzle(bits, base, shift), 0, outer)
        return str(cute.crd2idx(index, composed))
    if name == "value":
        return str(cute.crd2idx(operands[1], operands[0]))
    result = getattr(cute, name)(*operands)
    return str(result) if isinstance(result, int) else str(result.type)


def run() -> None:
    for case in CASES:
        try:
            ANSWERS.append(answer(case))
        except Exception:
            ANSWERS.append(None)


@cute.jit
def trace() -> None:
    run()


if __name__ == "__main__":
    try:
        cute.compile(trace)
    except BaseException as error:  # the trace is over by now; 4.4.0 goes on to ask for a driver
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    json.dump(ANSWERS, sys.stdout)
