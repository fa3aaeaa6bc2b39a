"""Where clusters run: slots of SMs that hold one cluster each, in the order in which a GPU fills them."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_nvfp4.model.constants import DeviceConstants
from pytest_nvfp4.model.recording import Recording

__all__ = ["Slots", "slots_of"]


@dataclass(frozen=True, slots=True)
class Slots:
    """Places of resident clusters.

    Attributes:
        sms: SMs of each slot, one for each CTA of a cluster. SMs come up again in the slots of a further round.
        groups: Slots of one round: those with different SMs.
    """

    sms: tuple[tuple[int, ...], ...]
    groups: int


def slots_of(recording: Recording, device: DeviceConstants, *, ctas_per_sm: int | None = None) -> Slots:
    """Return the slots of a launch: each SM once, then each SM a second time, and so on.

    A cluster's CTAs lie on different SMs of one GPC, so that fewer clusters than SMs over size are resident; the table
    of the device says how many.
    """
    size = recording.cluster[0] * recording.cluster[1] * recording.cluster[2]
    groups = max(1, device.clusters(size))
    rounds = max(1, recording.ctas_per_sm if ctas_per_sm is None else ctas_per_sm)
    one = tuple(tuple(range(group * size, group * size + size)) for group in range(groups))
    return Slots(one * rounds, groups)
