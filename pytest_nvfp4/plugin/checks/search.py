"""``search``: no problem is found that the kernel gets wrong.

Hypothesis draws group lists that are legal for the kernel's tile and as awkward as can be; the simulator runs them in
batches and the exact oracle judges them. What fails is made small, named, and tried first next time. A search that
finds nothing proves nothing. Off unless ``--nvfp4-search`` asks for it.
"""

from __future__ import annotations

from pytest_nvfp4.plugin.searching import KernelInSearch


def search(nvfp4_searching: KernelInSearch) -> None:
    """No group list is found on which an output is wrong."""
    nvfp4_searching.search()
