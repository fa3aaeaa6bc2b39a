"""Places of ``kernels/nvfp4_group_gemm/steps/map_updates.py``: its loads, waits, loops, descriptors and stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tests.sim.mutants.mutate import Edit, Listing, Mutation, Site

Operand = Literal["A", "B", "SFA", "SFB"]
_ORDER = ("A", "B", "SFA", "SFB")
_TABLE = {"A": 32, "B": 40, "SFA": 48, "SFB": 56}


def tma(k: Listing, operand: Operand) -> Site:
    """The TMA load of an operand."""
    return k.one("cp.async.bulk.tensor", _ORDER.index(operand))


def wait(k: Listing, barrier: str) -> Site:
    """The wait on ``full_mbar``, ``empty_mbar`` or ``acc_mbar``."""
    return k.one("mbarrier.try_wait", source=f"mbarrier_wait({barrier}")


def ring(k: Listing, last: Site) -> dict[str, Site]:
    """The end of the pipeline loop behind ``last``: its stage comparison and loop condition."""
    return {"stage": k.following(last, "setp.eq"), "loop": k.following(last, "setp.ne")}


def trips(k: Listing, last: Site, by: int) -> Edit:
    """The loop behind ``last`` runs ``by`` times more often: its counter runs from -k_tiles to 0."""
    counter = ring(k, last)["loop"].operands[1]
    start = next(site for site in k.writers(counter) if site.instruction.opcode == "neg.s32")
    return start.after(f"sub.s32 {counter}, {counter}, {by};")


def load_end(k: Listing) -> Site:
    return tma(k, "SFB")


def mma_end(k: Listing) -> Site:
    return k.one("tcgen05.commit", source="empty_mbar")


def parity(k: Listing, barrier: str) -> Site:
    """Where the parity of a wait is flipped."""
    register = wait(k, barrier).operands[2]
    return next(site for site in k.writers(register) if site.instruction.opcode == "xor.b32")


def initial_parity(k: Listing, barrier: str) -> Site:
    """Where the parity of a wait, or of the register that it starts from, is set."""
    register = wait(k, barrier).operands[2]
    return next(site for site in k.writers(register) if site.instruction.opcode != "xor.b32")


def table_offset(k: Listing, address: str) -> int:
    """Byte of the group table's row that ``[register+offset]`` is."""
    base, _, offset = address.strip("[] ").partition("+")
    if offset:
        return int(offset)
    return int(k.writers(base)[-1].operands[2])


def tensormap(k: Listing, operand: Operand, field: str, ordinal: int | None = None) -> Site:
    """Where a CTA replaces a field of an operand's tensor map."""
    for site in k.all("tensormap.replace.tile.global_address"):
        load = k.definition(site, site.operands[1])
        if table_offset(k, load.operands[1]) == _TABLE[operand]:
            break
    else:
        raise LookupError(operand)
    if field == "global_address":
        return site
    for other in k.sites[site.instruction.index + 1 :]:
        opcode, operands = other.instruction.opcode, other.operands
        if f".{field}." in opcode and (ordinal is None or operands[1] == str(ordinal)):
            return other
    raise LookupError(field)


def published(k: Listing, operand: Operand) -> Site:
    """Where a CTA publishes an operand's tensor map."""
    return k.following(tensormap(k, operand, "global_address"), "tensormap.cp_fenceproxy")


def elect_branch(k: Listing, site: Site) -> Site:
    """The branch of the lanes that are not elected around ``site``."""
    return k.following(k.previous(site, "elect"), "bra")


def skip_branch(k: Listing, site: Site) -> Site:
    """The nearest branch above ``site``."""
    return k.previous(site, "bra")


def idesc(mask: int) -> Mutation:
    """Bits of the instruction descriptor of all MMAs flipped."""
    return lambda k: [site.compute(3, f"xor.b32 #, $, {mask};", kind="r") for site in k.all("tcgen05.mma")]


def smem_desc(operand: Literal["A", "B"], mask: int, number: int = 0) -> Mutation:
    position = {"A": 1, "B": 2}[operand]
    return lambda k: k.one("tcgen05.mma", number).compute(position, f"xor.b64 #, $, {mask};", kind="d")


def sf_desc(mask: int, number: int = 0) -> Mutation:
    return lambda k: k.one("tcgen05.cp", number).compute(1, f"xor.b64 #, $, {mask};", kind="d")


def sf_add(amount: int, number: int = 0) -> Mutation:
    return lambda k: k.one("tcgen05.cp", number).compute(1, f"add.s64 #, $, {amount};", kind="d")


def stores(k: Listing) -> list[Site]:
    """The stores of a thread's row of C, in order."""
    return k.all("st.global", source="cute.autovec_copy(tDrC")


def width(k: Listing) -> int:
    """Bytes of one of them."""
    site = stores(k)[0]
    return (site.operands[1].count(",") + 1) * (8 if site.instruction.has("b64") else 4)


def bounds(k: Listing) -> Site:
    """The comparison of a row with m."""
    return k.previous(stores(k)[0], "setp")


def commit_first(k: Listing) -> Sequence[Edit]:
    """The commit of a stage at the head of the loop, where the address of its full barrier is known."""
    commit = mma_end(k)
    base, _, offset = wait(k, "full_mbar").operands[1].strip("[]").partition("+")
    empty = f"[{base}+{int(offset or 0) + 24}]"
    return [commit.drop(), k.one("tcgen05.cp", 0).before(f"{commit.instruction.opcode} {empty};")]


def other_map(k: Listing) -> Edit:
    load, other = tma(k, "SFA"), tma(k, "SFB")
    return load.set(1, other.operands[1].split(",")[0] + "," + load.operands[1].split(",", 1)[1])


def load_of(k: Listing, operand: Operand) -> Site:
    site = tensormap(k, operand, "global_address")
    return k.definition(site, site.operands[1])


def template(k: Listing) -> Sequence[Edit]:
    """The first 64 bytes of A's staged map, which are all that matter, from the parameter of SFA's template."""
    elected = k.previous(tensormap(k, "A", "global_address"), "elect")
    stores: list[Site] = []
    site = elected
    while (site := k.previous(site, "st.shared")).instruction.has("v2"):
        stores.insert(0, site)
    edits = []
    for number, one in enumerate(stores[:4]):
        pair = f"{{%mutd{2 * number}, %mutd{2 * number + 1}}}"
        load = f"ld.param.v2.b64 {pair}, [{k.name}_param_5+{16 * number}];"
        edits.append(one.instead(f"{load} {one.instruction.opcode} {one.operands[0]}, {pair};"))
    return edits


def published_in_place(k: Listing) -> Edit:
    """B's place in global memory gets the staged map that lies before B's, which is A's."""
    return published(k, "B").shift(1, -128)


def stage_pitch(k: Listing) -> Edit:
    pitch = k.previous(tma(k, "A"), "shl")
    return pitch.set(2, str(int(pitch.operands[2]) - 1))


def field(operand: Operand, field: str, *operands: str) -> Mutation:
    def mutate(k: Listing) -> Edit:
        site = tensormap(k, operand, "global_address")
        opcode = f"tensormap.replace.tile.{field}.shared::cta.b1024.b32"
        return site.after(f"{opcode} {site.operands[0]}, {', '.join(operands)};")

    return mutate


def advance(k: Listing, operand: Operand, axis: int, by: int) -> Edit:
    coordinate = tma(k, operand).operands[1].split("{")[1].split("}")[0].split(",")[axis].strip()
    step = next(s for s in k.writers(coordinate) if s.instruction.opcode == "add.s32")
    return step.set(2, str(by))


def half_load(k: Listing) -> Edit:
    site = k.one("tcgen05.ld")
    registers = site.operands[0].strip("{} ").split(",")
    opcode = site.instruction.opcode.replace("x128", "x64")
    return site.instead(f"{opcode} {{{','.join(registers[:64])}}}, {site.operands[1]};")


def half_store(site: Site) -> Edit:
    """The first half of what a store writes."""
    registers = site.operands[1].strip("{} ").split(",")
    half = len(registers) // 2
    opcode = site.instruction.opcode.replace(f"v{len(registers)}", f"v{half}")
    return site.instead(f"{opcode} {site.operands[0]}, {{{', '.join(registers[:half])}}};")


def row_of_tile(k: Listing) -> Edit:
    """The row bound and address from the thread alone: x * TILE_M is 0."""
    site = k.previous(bounds(k), "shl")
    return site.set(1, "0")


def by_lane_3(k: Listing, site: Site) -> Edit:
    """The election around ``site`` decided by hand, for lane 3."""
    election = k.previous(site, "elect")
    predicate = election.operands[0].split("|")[1]
    return election.after(f"mov.u32 %mutr1, %laneid; setp.eq.s32 {predicate}, %mutr1, 3;")
