"""A kernel that changes a tensor map, publishes it and loads with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.driver.tensormap import ElementType
from tests.sim.ptx_case import Ran
from tests.sim.tma.kernels import DATA, copy_out, expect, first, noise, prologue, run_tensor, wait
from tests.sim.tma.maps import Geometry, loaded

OLD = Geometry(ElementType.F16, (96, 40), (208,), (64, 16), (), 3)
NEW = dataclasses.replace(OLD, dims=(80, 20), strides=(176,))
MAP = 512
LOAD = (
    f"cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+{DATA}], "
    "[{map}, {{32, 8}}], [%r1];"
)


def to_shared(size: int) -> str:
    lines = [f"ld.global.b64 %rd5, [%rd101+{i}];\nst.shared.b64 [%r1+{MAP + i}], %rd5;" for i in range(0, size, 8)]
    return "\n".join(["@%p0 bra COPIED;", *lines, "COPIED:", "bar.warp.sync 0xffffffff;"])


TO_SHARED = to_shared(128)
CHANGES = [
    "global_address.{s}.b1024.b64 [{a}], %rd102;",
    "global_dim.{s}.b1024.b32 [{a}], 0, 80;",
    "global_dim.{s}.b1024.b32 [{a}], 1, 20;",
    "global_stride.{s}.b1024.b64 [{a}], 0, %rd60;",
]


def changes(space: str, address: str) -> str:
    lines = ["mov.u64 %rd60, 176;"]
    lines += ["tensormap.replace.tile." + one.format(s=space, a=address) for one in CHANGES]
    return first("\n".join(lines), "CHANGED") + "\nbar.warp.sync 0xffffffff;"


PUBLISH = (
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{scope}.sync.aligned [%rd103], "
    f"[%r1+{MAP}], 128;"
)
ACQUIRE = "fence.proxy.tensormap::generic.acquire.{scope} [%rd103], 128;"
PUBLISHED = PUBLISH.format(scope="gpu")
ACQUIRED = ACQUIRE.format(scope="gpu")


def run_changed(
    *, publish: str = PUBLISHED, acquire: str = ACQUIRED, where: str = "%rd103", copied: str = TO_SHARED, **kwargs: Any
) -> Ran:
    body = "\n".join(
        [
            prologue(),
            copied,
            changes("shared::cta", f"%r1+{MAP}"),
            publish,
            acquire,
            first(expect(OLD.bytes) + "\n" + LOAD.format(map=where)),
            wait(),
            copy_out(OLD.bytes, to="%rd104"),
        ]
    )
    extra = {
        "y": noise(NEW.extent + 64, 5),
        "work": np.zeros(256, np.uint8),
        "out": np.zeros(2 * OLD.bytes, np.uint8),
    }
    return run_tensor(body, OLD, extra=extra, **kwargs)


def box(geometry: Geometry, source: NDArray[np.uint8]) -> list[int]:
    found = loaded(geometry, source, (32, 8), 1024 + DATA)
    return [found[1024 + DATA + i] for i in range(geometry.bytes)]
