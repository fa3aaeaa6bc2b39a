"""The launches of all twins, by report. Importing this needs the DSL and its environment."""

from __future__ import annotations

from . import clusters, global_memory, hangs, launches, stages, tensor_memory

LAUNCHES = {
    **clusters.LAUNCHES,
    **stages.LAUNCHES,
    **tensor_memory.LAUNCHES,
    **global_memory.LAUNCHES,
    **launches.LAUNCHES,
    **hangs.LAUNCHES,
}
