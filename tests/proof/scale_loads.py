"""Loads of scale factors."""

from __future__ import annotations

from pytest_nvfp4.layout.grammar import parse_layout
from pytest_nvfp4.proof.scale_loads import ScaleLoad
from pytest_nvfp4.proof.scale_operand import explicit_operand


def load_of(*, rows: int, vector: int = 16) -> ScaleLoad:
    """A load as it is to be, of blocks of 512 bytes: along k first, then along the rows."""
    blocks, ktiles = -(-rows // 128), 256 // (4 * vector)
    mmas, step = ("4", "1@1") if vector == 16 else ("(2,2)", "(1@0,1@1)")
    return ScaleLoad(
        explicit_operand(rows=rows, vector=vector),
        parse_layout(f"(512,{ktiles},{blocks}):(1/2@0,1@1,1@2)"),
        parse_layout(f"({512 * ktiles * blocks}):(1)"),
        parse_layout(
            f"((((32,4),{blocks}),({vector},{64 // vector})),1,{mmas}):((((8@0,2@0),1@2),(0,1/2@0)),0,{step})"
        ),
        (),
    )
