"""Make the corpus of real type texts: run one installed CuTe DSL over a sweep and keep every distinct str(obj.type).

    CUTE_DSL_ARCH=sm_100a CUTE_DSL_DRYRUN=1 CUTE_DSL_DISABLE_FILE_CACHING=1 python make_corpus.py OUT.txt.gz

Needs no GPU. The sweep runs in parts, each in a process of its own, since some layouts abort the DSL: what a part
printed before that is kept. The kernel below is made for its types only; it is never launched.
"""

from __future__ import annotations

import gzip
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PARTS = 48


@dataclass(frozen=True)
class Config:
    tile: tuple[int, int, int]
    stages: int
    acc_stages: int
    out: str
    vec: int
    cluster: tuple[int, int, int]
    pair: bool


def gemm_configs() -> list[Config]:
    configs = [
        Config((m, n, k), stages, acc, out, vec, cluster, pair)
        for (m, pair), n, k in itertools.product([(128, False), (256, True)], [64, 128, 192, 256], [256, 512, 768])
        for (stages, acc), (out, vec), cluster in itertools.product(
            [(1, 1), (2, 2), (3, 1), (5, 2)],
            [("Float16", 16), ("BFloat16", 16), ("Float32", 32)],
            [(1, 1, 1), (2, 1, 1), (2, 4, 1)],
        )
        if not (pair and cluster[0] == 1)
    ]
    return [config for index, config in enumerate(configs) if index % 3 == 0 or config.cluster == (1, 1, 1)]


def main(out: Path) -> None:
    texts: set[str] = set()
    for part in range(PARTS):
        done = subprocess.run(
            [sys.executable, __file__, "--part", str(part)], capture_output=True, text=True, check=False, timeout=600
        )
        found = {line for line in done.stdout.splitlines() if line and not line.startswith("#")}
        texts |= found
        sys.stderr.write(f"part {part}: {len(found)} texts, exit {done.returncode}, {len(texts)} in all\n")
        if not found:
            sys.stderr.write(done.stderr[-2000:])
    with gzip.GzipFile(out, "wb", mtime=0) as file:
        file.write("\n".join([*sorted(texts), ""]).encode())


def run_part(part: int) -> None:
    from corpus_dsl import sweep  # beside this file; imports cutlass

    sweep(gemm_configs()[part::PARTS], part=part, parts=PARTS)


if __name__ == "__main__":
    if sys.argv[1] == "--part":
        sys.path.insert(0, str(Path(__file__).parent))
        run_part(int(sys.argv[2]))
    else:
        os.environ.update(CUTE_DSL_ARCH="sm_100a", CUTE_DSL_DRYRUN="1", CUTE_DSL_DISABLE_FILE_CACHING="1")
        main(Path(sys.argv[1]))
