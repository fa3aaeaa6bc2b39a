"""What the operands of one MMA must have in common.

Nothing here depends on a kernel's names or tile sizes. C[m, n] is a sum over k of A[m, k] B[n, k] with the scale
factors of the same rows and the same k, so that

- row by row, A and SFA read the same row and k of one matrix, and B and SFB too;
- A and B read the same k of the two matrices of one group (of either order: D may be the transpose of C's tile).

Rows and k beyond a tensor are zeros (TMA fills them) or padding (of scale factors); both are *outside*, and equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pytest_nvfp4.sim.provenance.recorder import Operand, Part
from pytest_nvfp4.sim.provenance.tags import NO_TAG, ZERO, Places, Tags

PAIRS = (("A", "SFA"), ("B", "SFB"))
OUTSIDE, UNKNOWN, MISPLACED = -1, -2, -3
_K_BITS, _ROW_BITS = 24, 28


def row_of(key: int) -> tuple[int, str, int]:
    """Return the group, the matrix and the row of a key without k (``Content.rows``)."""
    matrix, row = divmod(key, 1 << _ROW_BITS)
    return matrix // 2, "AB"[matrix % 2], row


def row_keys(group: int, matrix: str) -> int:
    """Return the key without k of row 0 of a matrix; that of row r is r more."""
    return 2 * group + (matrix == "B") << _ROW_BITS


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What one operand read.

    Attributes:
        places: By row of the tile.
        keys: By row one number for matrix, group, row and k, equal for a matrix and its scale factors. Where there is
            none: ``OUTSIDE``, ``UNKNOWN``, or ``MISPLACED`` (elements that are read as scale factors, or the reverse).
        group, matrix, k: Those of most rows; None if no row is inside a tensor.
    """

    operand: Operand
    places: Places
    keys: NDArray[np.int64]
    group: int | None
    matrix: str | None
    k: int | None

    @classmethod
    def of(cls, operand: Operand, tags: Tags) -> Content:
        """Return what an operand read."""
        cells = operand.cells
        places = tags.places(cells)
        tensors = tags.tensors
        limits = np.array([(t.rows, t.k) for t in tensors] + [(0, 0)], np.int64)[places.tensor]
        scales = np.array([t.name.startswith("SF") for t in tensors] + [False])[places.tensor]
        misplaced = (places.tensor >= 0) & (scales != operand.name.startswith("SF"))
        inside = (places.tensor >= 0) & (places.row < limits[:, 0]) & (places.k < limits[:, 1]) & ~misplaced
        matrices = np.array([2 * t.group + (t.matrix == "B") for t in tensors] + [0], np.int64)
        keys = ((matrices[places.tensor] << _ROW_BITS) + places.row << _K_BITS) + places.k
        keys = np.where(inside, keys, np.where(cells == NO_TAG, UNKNOWN, np.where(misplaced, MISPLACED, OUTSIDE)))
        if not inside.any():
            return cls(operand, places, keys, None, None, None)
        most = int(np.bincount(places.tensor[inside]).argmax())
        of = inside & (places.tensor == most)
        k = int(np.bincount(places.k[of] // 32).argmax()) * 32
        return cls(operand, places, keys, tensors[most].group, tensors[most].matrix, k)

    @property
    def known(self) -> bool:
        """Whether every row is followed."""
        return bool((self.keys != UNKNOWN).all())

    @property
    def zeros(self) -> bool:
        """Whether every row reads zeros."""
        return bool((self.operand.cells == ZERO).all())

    @property
    def repeats(self) -> bool:
        """Whether two rows of the tile read one row of a matrix, which no tile of C needs."""
        inside = self.keys[self.keys >= 0]
        return bool(np.unique(inside).size < inside.size)

    def rows(self) -> NDArray[np.int64]:
        """Return the keys without k."""
        return np.where(self.keys >= 0, self.keys >> _K_BITS, self.keys)


Contents = Mapping[str, Content]


def contents(part: Part, tags: Tags) -> dict[str, Content]:
    """Return what the operands of a part read."""
    return {name: Content.of(operand, tags) for name, operand in part.operands.items()}


def differing(matrix: Content, scales: Content) -> NDArray[np.bool_]:
    """Return the rows in which a matrix and its scale factors read different places; unknown ones do not differ."""
    differ = (matrix.keys != scales.keys) & (matrix.keys != UNKNOWN) & (scales.keys != UNKNOWN)
    # A row of padding beside zeros: a box of A ends at its last row, a tile of scale factors at a multiple of 128.
    return np.asarray(differ)


def agrees(read: Contents) -> bool:
    """Return whether the operands fit each other, as far as they are known."""
    if any(differing(read[x], read[s]).any() for x, s in PAIRS):
        return False
    a, b = read["A"], read["B"]
    if a.k is None or b.k is None:
        return True
    return a.k == b.k and a.group == b.group and a.matrix != b.matrix


@dataclass(frozen=True, slots=True, eq=False)
class Blame:
    """An operand that read the wrong data, in the rows of ``mask``, and what it needs there.

    Attributes:
        reference: The operand whose data say what is needed.
        tensor: Index of the needed tensor.
        rows: The needed rows, one for each set row of ``mask``.
        k: The first needed k.
        doubtful: Whether the reference may be wrong instead: only their rows differ, and neither reads one twice.
    """

    name: str
    reference: str
    mask: NDArray[np.bool_]
    tensor: int
    rows: NDArray[np.int64]
    k: int
    doubtful: bool = False


def blames(read: Contents, seen: Mapping[str, set[int]], tags: Tags) -> list[Blame]:
    """Return the operands that read wrong data, by majority of the four.

    Args:
        read: What the operands read; they do not agree.
        seen: For each operand, the k that it read before in this accumulation: where two operands stand against two,
            those that repeat a k are wrong.
    """
    known = {name: each for name, each in read.items() if each.k is not None}
    if not known:
        return []
    first = next(iter(known.values()))
    group = _majority({name: each.group for name, each in known.items()}, first.group)
    fresh = [each.k for name, each in known.items() if each.k not in seen.get(name, ())]
    k = _majority({name: each.k for name, each in known.items()}, (fresh or [first.k])[0])
    sides = _sides({name: each.matrix for name, each in known.items()})
    assert group is not None
    assert k is not None
    found: list[Blame] = []
    for pair in PAIRS:
        differ = differing(*(read[name] for name in pair))
        for name, partner in (pair, pair[::-1]):
            each, other = read[name], read[partner]
            wanted = (group, sides[name[-1]], k)
            if each.k is None:
                mask = differ & (other.keys >= 0)
            elif (each.group, each.matrix, each.k) != wanted:
                mask = each.keys != UNKNOWN
            else:
                mask = differ & (each.keys >= 0) & ~_of_most(each, tags)
            right = other.k is not None and (other.group, other.matrix, other.k) == wanted
            if mask.any():
                source = other if right or each.k is None else each
                reference = partner if right or each.k is None else _right(read, wanted, sides)
                found += _needs(name, reference or partner, mask, source, wanted, tags)
    if found:
        return found
    for pair in PAIRS:
        differ = differing(*(read[name] for name in pair))
        repeating = [name for name in pair if read[name].repeats]
        certain = len(repeating) == 1
        for name, partner in (pair[::-1], pair):
            other = read[partner]
            mask = differ & (other.keys >= 0)
            if mask.any() and not (certain and name not in repeating):
                wanted = (group, sides[name[-1]], k)
                found += _needs(name, partner, mask, other, wanted, tags, doubtful=not certain)
    return found


def _right(read: Contents, wanted: tuple[int, str, int], sides: Mapping[str, str]) -> str | None:
    """Return an operand that reads the right group and k of its own matrix."""
    group, _, k = wanted
    for name, each in read.items():
        if (each.group, each.matrix, each.k) == (group, sides[name[-1]], k):
            return name
    return None


def _needs(
    name: str, partner: str, mask: NDArray[np.bool_], source: Content, wanted: tuple[int, str, int], tags: Tags, *,
    doubtful: bool = False,
) -> list[Blame]:  # fmt: skip
    group, matrix, k = wanted
    tensor = tags.find(f"SF{matrix}" if name.startswith("SF") else matrix, group)
    mask = mask & (source.keys >= 0)
    if tensor is None or not mask.any():
        return []
    rows = source.places.row[mask]
    inside = rows < tags.tensors[tensor].rows
    if not inside.any():
        return []
    kept = mask.copy()
    kept[mask] = inside
    return [Blame(name, partner, kept, tensor, rows[inside], k, doubtful)]


def _of_most(each: Content, tags: Tags) -> NDArray[np.bool_]:
    """Return the rows that come from the tensor and the k of most rows."""
    index = tags.find(each.operand.name[:-1] + str(each.matrix), each.group or 0)
    of = each.places.tensor == index
    return np.asarray(of & (each.places.k == each.k))


def _majority(votes: Mapping[str, int | None], otherwise: int | None) -> int | None:
    (common, count), *others = Counter(votes.values()).most_common()
    return common if not others or count > others[0][1] else otherwise


def _sides(matrices: Mapping[str, str | None]) -> dict[str, str]:
    """Return the matrix of each side of the MMA that the fewest operands contradict; A and B outweigh their scales."""

    def contradictions(sides: Mapping[str, str]) -> tuple[int, int]:
        wrong = [name for name, matrix in matrices.items() if matrix != sides[name[-1]]]
        return len(wrong), sum(not name.startswith("SF") for name in wrong)

    return min(({"A": "A", "B": "B"}, {"A": "B", "B": "A"}), key=contradictions)
