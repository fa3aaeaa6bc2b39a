"""The recorder: a monitor of the simulator that makes a ``Recording`` of each launch.

In a process with a simulator::

    recorder = Recorder()
    session.machine.monitor = recorder      # before the launches, in the eager schedule
    ...
    recordings = recorder.recordings()      # of the launches since the last call

Of a kernel in a worker, through the strict door::

    (result,) = device.simulate.simulate(device, kernel, [case], folder=folder, outputs=False, recording=True)
    recordings = model.storage.loads(result.recording)

With ``sampled=True`` besides, here or there, only some clusters of a large launch run (``model.large``); a worker then
records without data (``model.recorder_dataless``).

Nothing is added to the simulation's meaning. Without a recorder, compiled blocks are the same as ever; with one, each
appends its number to its warp's path, from which the instructions between two events follow.

What a recording holds of each mechanism:

- mbarriers: a phase counts arrivals and, for each copy that completes bytes, one signal. An arrive of a
  ``tcgen05.commit`` or of ``cp.async`` is a signal of that operation, and one at another CTA's barrier of an operation
  ``SHARED_REMOTE``. A wait that passes before the first phase is complete waits for nothing.
- named barriers and the cluster barrier: one signal of each warp a round. A warp whose end lets a round complete
  signals it there.
- groups of bulk stores: one phase for their completion and one for their reads; of ``cp.async``, one.
- ``wgmma``: the last of the four warps issues the operation; a wait is for the last operation that it covers.
- ``tcgen05.ld`` and ``st``: one phase for all since the last wait of the kind.
- loads of global memory and of a peer's shared memory: the warp waits at the first use of a result.
- fences, copies of tensor maps, ``griddepcontrol.wait`` and allocations of TMEM: an operation, which the warp waits
  for.
- ``mma.sync`` and ``griddepcontrol.launch_dependents``: an operation that nothing waits for.

- flags in global memory: a loop that only polls one (``recorder_polls``) is a single load, which begins when the flag
  has been written; an ordered store or an addition writes it, after a fence if it is a release. Clusters have one
  program if they differ only in their flags and in the values of these.

A recording is refused if control flow depends on the order in which CTAs or warps run: cluster launch control, an
atomic operation whose result is used, and any other load of global memory that is ordered with respect to other CTAs.
Not seen: a ``test_wait`` or ``try_wait`` whose result selects other work than another
wait, because waits succeed here unless nothing else can run; prefetches into L2, which move nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_nvfp4.model.recorder_footprints import LineNumbers
from pytest_nvfp4.model.recorder_launch import LaunchTape
from pytest_nvfp4.model.recorder_memory import MemoryEvents
from pytest_nvfp4.model.recorder_tape import CtaEnd, Tape
from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.sim.run.asynchronous import Eager
from pytest_nvfp4.sim.run.cta import Cluster
from pytest_nvfp4.sim.run.grid import Grid

if TYPE_CHECKING:
    from pytest_nvfp4.sim.races.launch_overlap import Overlap


class Recorder(MemoryEvents):
    """A monitor that records launches in the eager schedule (see the module).

    Args:
        sampled: Whether only some clusters of a large launch run, and the others are derived from them (``large``). The
            recording is that of all clusters; outputs and counters are incomplete.
    """

    follows_path = True

    def __init__(self, *, sampled: bool = False) -> None:
        super().__init__()
        self._sampled = sampled
        self._launches: list[LaunchTape] = []
        self._numbers = LineNumbers()

    def launched(
        self,
        grid: Grid,
        *,
        stream: int = 0,  # noqa: ARG002 - the event's arguments
        overlap: Overlap | None = None,  # noqa: ARG002
        dependent: bool = False,
    ) -> bool:
        """Begin the record of a launch. Raises ValueError unless asynchronous work completes at its issue."""
        if not isinstance(grid.machine.asynchronous, Eager):
            raise ValueError("launches are recorded in the eager schedule only")
        tape = grid.unit(LaunchTape)
        tape.begin(self._numbers, dependent=dependent)
        self._launches.append(tape)
        if self._sampled:
            tape.sample()
        return False

    def cluster_started(self, cluster: Cluster) -> None:
        """Begin the record of a cluster."""
        cluster.units[Tape] = Tape(cluster, cluster.launch.units[LaunchTape])
        for cta in cluster.ctas:
            cta.unit(CtaEnd)

    def recordings(self, *, below: str = "") -> list[Recording]:
        """Return the recordings of the launches since the last call; sites name files relative to a folder."""
        launches, self._launches = self._launches, []
        return [launch.recording(below=below) for launch in launches]
