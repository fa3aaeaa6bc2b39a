"""All mutants, by kernel."""

from __future__ import annotations

from pytest_nvfp4.problem import Group, Problem
from tests.sim.mutants import map_updates, sm90
from tests.sim.mutants.outcome import Mutant, Subject

__all__ = ["SUBJECTS", "Mutant", "Subject"]

SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            "map_updates",
            "steps/map_updates.py",
            "sm_100a",
            # Ragged, k of 4 and 7 tiles: both wrap the ring of three stages.
            Problem("mutants", (Group(200, 128, 1024), Group(72, 256, 1792)), seed=7),
            "nan_pad",
            map_updates.MUTANTS,
            warned=("cute.copy(s2t_sfa",),
        ),
        Subject(
            "sm90",
            "sm90.py",
            "sm_90a",
            # Two widths, both with a ragged last tile; k of 4 units wraps the three stages of weights, and the items of
            # a cluster together the five of tokens.
            Problem("mutants", (Group(52, 128, 1024), Group(24, 256, 768)), seed=7),
            "nan_pad",
            sm90.MUTANTS,
            edits=(
                ("WIDTHS = (48, 64, 80, 96, 128, 160, 176, 256)", "WIDTHS = (48, 96)"),
                (
                    "torch.cuda.get_device_properties(device).multi_processor_count // CLUSTER",
                    "1",
                ),
            ),
        ),
    )
}
