"""A trip, a stage, a copy or an MMA more or less."""

from __future__ import annotations

from tests.sim.mutants.map_updates.places import advance, half_load, load_end, mma_end, ring, stores, tma, trips
from tests.sim.mutants.outcome import Equivalent, Found, Mutants, Wrong

mutant = Mutants("count")

mutant("TMA loads a k-tile more", lambda k: trips(k, load_end(k), 1), Found("in-flight", "cute.copy(tma_atom_sfb"))
mutant(
    "TMA loads a k-tile less",
    lambda k: trips(k, load_end(k), -1),
    Found("deadlock", "cute.arch.mbarrier_wait(full_mbar"),
)
mutant(
    "MMA takes a k-tile more",
    lambda k: trips(k, mma_end(k), 1),
    Found("deadlock", "cute.arch.mbarrier_wait(full_mbar"),
)
mutant("MMA takes a k-tile less", lambda k: trips(k, mma_end(k), -1), Found("in-flight", "cute.copy(tma_atom_sfb"))
mutant("a k-tile less", lambda k: [trips(k, load_end(k), -1), trips(k, mma_end(k), -1)], Wrong(""))
mutant(
    "a k-tile more",
    lambda k: [trips(k, load_end(k), 1), trips(k, mma_end(k), 1)],
    Equivalent(
        "TMA fills what lies behind k with zeros, elements and scale factors alike: the products added are zeros.",
        (
            "mbarrier.arrivals",
            "mbarrier.arrived_bytes",
            "mbarrier.expected_bytes",
            "mbarrier.phases",
            "mbarrier.waits",
            "mma.columns",
            "mma.flops",
            "mma.instructions",
            "mma.mxf4nvf4.1cta",
            "mma.rows",
            "tcgen05.commits",
            "tcgen05.cp.bytes",
            "tcgen05.cp.instructions",
            "tma.load.bytes",
            "tma.load.delivered_sectors",
            "tma.load.requests",
        ),
    ),
)
mutant(
    "TMA uses two of three stages",
    lambda k: ring(k, load_end(k))["stage"].set(2, "2"),
    # A group of three k-tiles: the TMA warp is at its end, and its arrive is named.
    Found("deadlock", "cute.arch.mbarrier_wait(full_mbar", ("mbarrier.arrive.expect_tx", "has left its loop")),
)
mutant(
    "MMA uses two of three stages",
    lambda k: ring(k, mma_end(k))["stage"].set(2, "2"),
    Found("deadlock", "cute.arch.mbarrier_wait(empty_mbar"),
)
mutant(
    "two stages",
    lambda k: [ring(k, load_end(k))["stage"].set(2, "2"), ring(k, mma_end(k))["stage"].set(2, "2")],
    Equivalent(
        "TMA and MMA agree on a ring of two; the third stage lies idle. Counters and results are those of three."
    ),
)
mutant(
    "TMA uses a fourth stage",
    lambda k: ring(k, load_end(k))["stage"].set(2, "4"),
    Found("out-of-bounds", "cute.copy(tma_atom_b"),
)
mutant(
    "four stages",
    lambda k: [ring(k, load_end(k))["stage"].set(2, "4"), ring(k, mma_end(k))["stage"].set(2, "4")],
    Found("out-of-bounds", "cute.copy(tma_atom_b"),
)
mutant(
    "SFA of the last k-block is not copied",
    lambda k: k.one("tcgen05.cp", 3).drop(),
    Found("uninitialised", "cute.gemm(tiled_mma"),
)
mutant(
    "SFB of the first k-block is copied in place of the last",
    lambda k: k.one("tcgen05.cp", 7).set(1, k.one("tcgen05.cp", 4).operands[1]),
    Wrong(""),
)
mutant("the last MMA of a k-tile is missing", lambda k: k.one("tcgen05.mma", 3).drop(), Wrong(""))
mutant(
    "the first MMA of a k-tile twice",
    lambda k: k.one("tcgen05.mma", 0).after(k.ptx[k.one("tcgen05.mma", 0).start : k.one("tcgen05.mma", 0).end]),
    Wrong(""),
)
mutant(
    "SFA is not loaded",
    lambda k: tma(k, "SFA").drop(),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
)
mutant(
    "SFA is not loaded and not expected",
    lambda k: [tma(k, "SFA").drop(), k.one("mbarrier.arrive.expect_tx").set(2, "34816")],
    Found("uninitialised", "cute.copy(s2t_sfa"),
)
mutant(
    "A is loaded twice",
    lambda k: tma(k, "A").after(k.ptx[tma(k, "A").start : tma(k, "A").end]),
    Found("deadlock", "cute.arch.mbarrier_arrive_and_expect_tx(mbar"),
    Found("in-flight", "cute.copy(tma_atom_a"),
    race=Found("race", "cute.copy(tma_atom_a"),
)
mutant("k advances by 128", lambda k: advance(k, "A", 0, 128), Wrong(""))
mutant("blocks of scale factors advance by 2", lambda k: advance(k, "SFA", 1, 2), Wrong(""))
mutant("the last store of a row is missing", lambda k: stores(k)[-1].drop(), Found("never-written", ""))
mutant(
    "64 of 128 columns of the accumulator are read",
    half_load,
    Wrong("rows 0-199 (all), columns 64-127"),
)
