"""Speed of comparing layouts in this process, with layouts that no cache holds."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from pytest_nvfp4.layout.canonical import canonical_text
from pytest_nvfp4.layout.diff import diff_listings
from pytest_nvfp4.layout.grammar import parse_type
from pytest_nvfp4.layout.listing import Listing, Record
from pytest_nvfp4.layout.sameness import compare
from pytest_nvfp4.selfcheck.speed.figures import Figure

LAYOUTS = 10_000
DECISIONS = 4_000
_CHANGED = 0.01


def _type(at: int, rng: random.Random) -> str:
    """Return a type as block-scaled kernels have them; a stride depends on ``at``, so that no type occurs twice."""
    rows, columns, stages, step = 8 * rng.randint(1, 16), 16 * rng.randint(1, 16), rng.randint(2, 6), (1 << 20) + 8 * at
    match at % 4:
        case 0:
            layout = f"(({rows},{columns}),1,4,{stages}):(({columns * 4},1),0,{columns},{step})"
            return f'!cute.memref<f4E2M1FN, smem, align<1024>, S<3,4,3>, "{layout}">'
        case 1:
            return f'!cute.layout<"((((32,4),1),(16,4)),1,4,{stages}):((((16,4),0),(0,1)),0,512,{step})">'
        case 2:
            return f'!cute.memref<f32, tmem, align<16>, "(({rows},{columns}),1,{stages}):((65536,1),0,{step})">'
    return f'!cute.coord_tensor<"(0,0)", "(({rows},64),1,{stages},?,?):((1@1,1@0),0,64@0,{step}@1,256@0)">'


def _changed(text: str) -> str:
    """Return the same type with another last stride or alignment."""
    if "align<1024>" in text:
        return text.replace("align<1024>", "align<128>")
    head, _, tail = text.rpartition(",")
    return f"{head},2{tail}" if tail[:1].isdigit() else text.replace("(0,0)", "(1,0)", 1)


def listings(seed: int, *, count: int = LAYOUTS) -> tuple[Listing, Listing]:
    """Return a listing, and the same with one layout in a hundred changed; another seed has other layouts."""
    rng = random.Random(seed)
    texts = [_type(seed * count + at, rng) for at in range(count)]
    names = [f"kernel.value_{at:05d}" for at in range(count)]
    moved = set(rng.sample(range(count), max(1, int(count * _CHANGED))))
    after = [_changed(text) if at in moved else text for at, text in enumerate(texts)]
    old, new = (tuple(map(Record, names, side)) for side in (texts, after))
    return Listing({}, old), Listing({}, new)


def figures(rounds: int, *, count: int = LAYOUTS, decisions: int = DECISIONS) -> Iterator[Figure]:
    """Measure comparing and reading listings of ``count`` layouts, and single decisions; each round has new layouts."""
    comparing, reading, from_text, parsed = [], [], [], []
    for seed in range(rounds):
        old, new = listings(seed, count=count)
        start = time.perf_counter()
        diff = diff_listings(old, new)
        comparing.append(time.perf_counter() - start)
        assert diff.changes, "the changed layouts were not detected"
        text = listings(rounds + seed, count=count)[1].render()
        canonical_text.cache_clear()
        parse_type.cache_clear()
        start = time.perf_counter()
        Listing.parse(text)
        reading.append(time.perf_counter() - start)
        pairs = _pairs(2 * (rounds + seed), decisions)
        start = time.perf_counter()
        for one, other in pairs:
            compare(one, other)
        from_text.append(decisions / (time.perf_counter() - start))
        known = [(parse_type(one), parse_type(other)) for one, other in _pairs(2 * (rounds + seed) + 1, decisions)]
        start = time.perf_counter()
        for before, after in known:
            compare(before, after)
        parsed.append(decisions / (time.perf_counter() - start))
    yield Figure("diff", f"diff of {count:,} layouts, 1 in 100 changed", "s", comparing)
    yield Figure("parse", f"reading a snapshot of {count:,} layouts", "s", reading)
    yield Figure("sameness-text", "sameness decisions, from the text of two types", "a second", from_text)
    yield Figure("sameness", "sameness decisions, of types already read", "a second", parsed)


def _pairs(seed: int, count: int) -> list[tuple[str, str]]:
    rng = random.Random(1_000_000 + seed)
    texts = [_type(10_000_000 + seed * count + at, rng) for at in range(count)]
    return [(text, _changed(text)) for text in texts]
