"""Kernels that are right when they are called once, and keep something that a second call needs anew."""

from __future__ import annotations

from pathlib import Path

HONEST = (Path(__file__).parent / "kernels" / "honest.py").read_text().replace("def custom_kernel", "def work")

_ADDRESSES = "tuple((a.data_ptr(), b.data_ptr(), c.data_ptr()) for a, b, c in data[0])"
_CACHED = """
ANSWERS = {{}}
def custom_kernel(data):
    key = {key}
    if key not in ANSWERS:
        ANSWERS[key] = [c.clone() for c in work(data)]
    for (_, _, c), answer in zip(data[0], ANSWERS[key], strict=True):
        c.copy_(answer)
    return [c for _, _, c in data[0]]
"""
_SKIPPED = """
SEEN = set()
def custom_kernel(data):
    key = {key}
    if key in SEEN:
        return [c for _, _, c in data[0]]
    SEEN.add(key)
    return work(data)
"""
_KEPT = """
KEPT = {}
def custom_kernel(data):
    abc, plain, reordered, sizes = data
"""

ONLY_WRONG_TWICE = {
    "skips the same addresses": (_SKIPPED.format(key=_ADDRESSES), "same addresses"),
    "skips what the call before was": (
        "LAST = []\ndef custom_kernel(data):\n"
        f"    key = {_ADDRESSES}\n"
        "    if LAST[-1:] == [key]:\n        return [c for _, _, c in data[0]]\n"
        "    LAST.append(key)\n    return work(data)\n",
        "one row of A of each group changed",
    ),
    "skips all calls but the first of each number of groups": (
        _SKIPPED.format(key="len(data[3])"),
        "the first of these sizes, after calls of other sizes",
    ),
    "remembers by a hash of some contents": (
        _CACHED.format(key="tuple(bytes(b.view(torch.uint8).cpu().numpy()[:1].tobytes()) for _, b, _ in data[0])"),
        "an earlier call",
    ),
    "keeps the operands of call one": (
        _KEPT + "    abc = [(a, b, c) for (a, b, _), (_, _, c) in zip(KEPT.setdefault(tuple(sizes), abc), abc)]\n"
        "    return work((abc, plain, reordered, sizes))\n",
        "other addresses",
    ),
    "keeps the sizes of call one": (
        _KEPT + "    rows = KEPT.setdefault(len(sizes), [m for m, *_ in sizes])\n"
        "    for (a, b, c), (sfa, sfb), m, (_, n, k, _) in zip(abc, reordered, rows, sizes, strict=True):\n"
        "        m = min(m, c.shape[0])\n"
        "        c[:m, :, 0].copy_(compute(a[:m], b, sfa, sfb, m, n, k))\n"
        "    return [c for _, _, c in abc]\n",
        "the first of these sizes, after calls of other sizes",
    ),
    "ignores the storage offset": (
        "def start(t):\n"
        "    return torch.as_strided(t.view(torch.uint8), t.shape, t.stride(), 0).view(t.dtype)\n"
        "def custom_kernel(data):\n"
        "    abc, plain, reordered, sizes = data\n"
        "    abc = [(start(a), start(b), c) for a, b, c in abc]\n"
        "    return work((abc, plain, reordered, sizes))\n",
        "other addresses, inputs at a storage offset",
    ),
    "returns one buffer for all calls": (
        _KEPT + "    outputs = work(data)\n"
        "    for index, c in enumerate(outputs):\n"
        "        kept = KEPT.setdefault((c.shape, index), torch.empty_like(c))\n"
        "        outputs[index] = kept.copy_(c)\n"
        "    return outputs\n",
        "changed this output, which belongs to the caller",
    ),
    "writes the output of call one again": (
        _KEPT + "    first = KEPT.setdefault(tuple(sizes), [c for _, _, c in abc])\n"
        "    outputs = work(data)\n"
        "    for c, new in zip(first, outputs, strict=True):\n"
        "        c.copy_(new)\n"
        "    return outputs\n",
        "changed this output, which belongs to the caller",
    ),
}
"""What a kernel does beside its work, and words of a finding about it."""
