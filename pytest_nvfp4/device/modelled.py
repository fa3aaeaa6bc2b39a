"""Modelled times of one call of a kernel: the recordings of its launches, replayed on a table of a device.

Every time here is *modelled*. It is no measurement, and none is ever compared
with a measured one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pytest_nvfp4.device.job import Model
from pytest_nvfp4.device.simulate import SimulationResult
from pytest_nvfp4.driver.device_model import for_arch
from pytest_nvfp4.isolation.door.fields import Count, Microseconds, Name, Sentence
from pytest_nvfp4.model.bands import Band, bands_of, widest
from pytest_nvfp4.model.constants import DEVICES, ConstantsError, DeviceConstants, load_device, shipped_device
from pytest_nvfp4.model.recording import Recording
from pytest_nvfp4.model.replay import Conditions, Replay, ReplayError, replay_sequence
from pytest_nvfp4.model.sample import Samples
from pytest_nvfp4.model.scope import kind_of, refusals
from pytest_nvfp4.model.storage import loads
from pytest_nvfp4.model.timeline import slices_of
from pytest_nvfp4.toolchain.code_hash import PACKAGE, code_hash

_NO_PART = ("bands.py", "barriers.py", "calibrated.py", "timeline.py", "what_if.py")
"""Modules of the model that change no modelled time. A new module counts until it is named here."""
_LINES = 1000
_SLICES = 4000
"""Slices of a timeline that a report draws."""
_PIXELS = 2000
"""Pixels of its width: slices that are closer than one are merged."""
_Share = Annotated[float, Field(ge=0, le=1.000001)]


@cache
def model_version(package: Path = PACKAGE) -> str:
    """Return the version of recorder and replayer, a digest of their code: times of two versions are not compared.

    The devices' tables have digests of their own (`DeviceConstants.digest`).
    """
    names = sorted(path.name for path in (package / "model").glob("*.py") if path.name not in _NO_PART)
    return code_hash([f"model/{name}" for name in names], package=package)[:12]


class PathPart(Model):
    """Time on the critical path of a launch, of one role of warps at one line.

    Attributes:
        role: What the warps do, as ``cost`` names it.
        source: ``file:line`` of the author's source; empty if the PTX does not say.
        cause: What the time is spent on or waited for.
        us: The time.
    """

    role: Name
    source: Name
    cause: Name
    us: Microseconds


class PathWait(Model):
    """Waits on the critical path of a launch, of one role of warps at one line ``file:line``."""

    role: Name
    source: Name
    count: Count


class UnitBusy(Model):
    """Share of a launch's time in which a unit works: on the SM where it works longest, and on average."""

    unit: Name
    busiest: _Share
    mean: _Share


class ModelledLaunch(Model):
    """The modelled time of one launch.

    Attributes:
        kernel: Name of the kernel.
        ctas: Number of its CTAs.
        us: Its time, from the end of the launch before.
        kernel_us: Part of it from the start of the first CTA to the end of the last one.
        launch_us: Part of it before the first CTA starts.
        fill_us: Time until the first matrix instruction of the median SM, or the first copy if there is none.
        drain_us: Time after the last matrix instruction of the median SM.
        tail_us: Time in which some SMs have no work left.
        waves: Rounds of CTAs on the SMs.
        bound: The unit that limits the launch.
        busy: Shares of time in which units work.
        path: The critical path, by role, line and cause, the longest part first. Its parts add up to ``kernel_us``.
        waits: The waits on the critical path, the most frequent first.
        notes: What the replay assumed.
    """

    kernel: Name
    ctas: Count
    us: Microseconds
    kernel_us: Microseconds
    launch_us: Microseconds
    fill_us: Microseconds
    drain_us: Microseconds
    tail_us: Microseconds
    waves: Annotated[float, Field(ge=0)]
    bound: Name
    busy: Annotated[tuple[UnitBusy, ...], Field(max_length=_LINES)]
    path: Annotated[tuple[PathPart, ...], Field(max_length=_LINES)]
    waits: Annotated[tuple[PathWait, ...], Field(max_length=_LINES)] = ()
    notes: Annotated[tuple[Sentence, ...], Field(max_length=_LINES)] = ()


class TimelineSlice(Model):
    """Modelled time on a track of the first SM: ``warps: mma``, a unit, ``barrier: mma at k.py:7 [0]``.

    Times are in ns from the start of the first launch. ``merged`` is the number of slices of the track, with this name
    and a gap of less than a pixel between them, that it stands for; ``source`` is the line of the first.
    """

    track: Name
    name: Name
    begin_ns: Annotated[float, Field(ge=0)]
    end_ns: Annotated[float, Field(ge=0)]
    source: Name = ""
    merged: Count = 1


class ModelledCall(Model):
    """The modelled time of one call.

    Attributes:
        device: Name of the device's table.
        title: The device.
        table: Version and digest of the table.
        model: Version of recorder and replayer.
        conditions: Conditions that the launches are modelled under.
        kind: Kind of the kernel (`model.scope.kind_of`).
        launches: The launches; empty if the call is refused.
        refused: Why no time is modelled; empty if one is.
        timeline: What happens on the first SM, for a report; empty if it was not requested.
    """

    device: Name
    title: Name
    table: Name
    model: Name = Field(default_factory=model_version)
    conditions: Name
    kind: Name
    launches: Annotated[tuple[ModelledLaunch, ...], Field(max_length=_LINES)] = ()
    refused: Annotated[tuple[Sentence, ...], Field(max_length=_LINES)] = ()
    timeline: Annotated[tuple[TimelineSlice, ...], Field(max_length=_SLICES)] = ()

    @property
    def us(self) -> float:
        """Time of the call: the sum of its launches."""
        return sum(launch.us for launch in self.launches)

    @property
    def machine(self) -> str:
        """Name of the machine that pytest-benchmark stores the time under."""
        return machine_name(self.device)

    @property
    def band(self) -> Band | None:
        """The band of such kernels and times under the conditions, on the shipped table; None if it has none."""
        known = [band for band in bands_of(self.device, self.kind) if band.conditions == self.conditions]
        return widest(known, self.us) if self.shipped else None

    @property
    def table_text(self) -> str:
        """The table of the device's constants: name, version, digest, and whether it is a shipped one."""
        version, _, digest = self.table.partition(" ")
        which = "shipped" if self.shipped else "not a shipped one"
        return f"table {self.device}, version {version}, digest {digest} ({which})"

    @property
    def shipped(self) -> bool:
        """Whether the table is the shipped one of the device, by its values."""
        return self.device in DEVICES and self.table == _table(shipped_device(self.device))

    @property
    def without_band(self) -> str:
        """Why there is no band."""
        known = bands_of(self.device, self.kind)
        if not self.shipped:
            return "this table has not been validated"
        if not known:
            return f"the model was not compared with measured times of a {self.kind} on this device"
        fitting = [band for band in known if band.conditions == self.conditions]
        if not fitting:
            others = " or ".join(dict.fromkeys(map(self._named, known)))
            return f"the model was compared with measured times of a {self.kind} under other conditions only ({others})"
        shortest = min(band.shortest_us for band in fitting)
        return f"the model was compared with measured times of {shortest:g} us and more only"

    def _named(self, band: Band) -> str:
        """Return the conditions of a band, with the option that models a time under them."""
        device = shipped_device(self.device)
        names = (name for name in CONDITIONS if conditions_text(conditions_of(name, device)) == band.conditions)
        return "".join([*(f"--conditions {name}: " for name in names), band.conditions])


def _table(device: DeviceConstants) -> str:
    """Return the version and the digest of a table in one text."""
    return f"{device.version} {device.digest}"


def machine_name(device: str) -> str:
    """Return the name under which pytest-benchmark stores modelled times of a device: ``modelled-b200``."""
    return f"modelled-{device}"


def device_for(arch: str, name: str | None = None) -> DeviceConstants:
    """Return a device's table: the named one, or that of the device that the simulator imitates.

    Raises:
        ConstantsError: There is no such table, or the device does not run code of the architecture.
    """
    if name is not None:
        device = load_device(name)
        if arch not in device.arch:
            raise ConstantsError(
                f"the kernel is for {arch}, which {device.title} does not run; it runs {', '.join(device.arch)}"
            )
        return device
    # Without a name it is the product that the simulator imitates, whose SM count the kernel's host code has seen.
    product = for_arch(arch).name.rpartition(" ")[2].lower()
    if product in DEVICES and arch in load_device(product).arch:
        return load_device(product)
    raise ConstantsError(f"there is no table of {product!r} for {arch}; there are tables of {', '.join(DEVICES)}")


CONDITIONS: Mapping[str, Conditions] = {
    "gpumode": Conditions.gpumode(),
    "single": Conditions(),
    "alone": Conditions(launch="alone"),
}
"""Conditions by the names that options give them."""


def conditions_of(name: str, device: DeviceConstants) -> Conditions:
    """Return conditions by name, for a device. Raises KeyError."""
    conditions = CONDITIONS[name]
    # The rate of DRAM in GPU MODE's conditions is that of its B200.
    return conditions if device.name == "b200" else replace(conditions, dram_tb_s=None)


def conditions_text(conditions: Conditions) -> str:
    """Return conditions in words: ``cold L2, launched in a stream, 5.9148 TB/s of DRAM``."""
    words = ["cold L2" if conditions.cold_l2 else "warm L2", _LAUNCHED[conditions.launch]]
    for value, unit in ((conditions.clock_ghz, "GHz"), (conditions.dram_tb_s, "TB/s of DRAM")):
        if value is not None:
            words.append(f"{value:g} {unit}")
    if conditions.ctas_per_sm is not None:
        words.append(f"{conditions.ctas_per_sm} CTAs an SM")
    return ", ".join(words)


_LAUNCHED = {
    "stream": "launched in a stream",
    "dependent": "programmatic dependent launches",
    "graph": "launched by a graph",
    "alone": "alone between two events",
    "none": "without launch costs",
}


def recordings_of(done: SimulationResult) -> tuple[Recording, ...]:
    """Return the recordings of a simulation, which may have none. Raises DoorError if they are damaged."""
    recordings = () if done.recording is None else loads(done.recording)
    return tuple(replace(each, notes=(*each.notes, *done.notes)) for each in recordings)


def modelled_call(
    recordings: Sequence[Recording], device: DeviceConstants, conditions: Conditions, *, timeline: bool = False
) -> ModelledCall:
    """Return the modelled time of a call from the recordings of its launches, or why there is none."""
    return replayed_call(recordings, device, conditions, timeline=timeline)[0]


def replayed_call(
    recordings: Sequence[Recording],
    device: DeviceConstants,
    conditions: Conditions,
    samples: Samples | None = None,
    *,
    timeline: bool = False,
) -> tuple[ModelledCall, tuple[Replay, ...]]:
    """Return `modelled_call`, and the replays of the launches; none if the call is refused.

    ``samples`` are samples that further replays of the recordings share.
    """
    refused = refusals(recordings) if recordings else ["the call launched no kernel"]
    done: list[Replay] = []
    if not refused:
        try:
            done = replay_sequence(recordings, device, conditions=conditions, samples=samples, timeline=timeline)
        except (ReplayError, ConstantsError) as error:
            refused = [str(error)]
    call = ModelledCall(
        device=device.name,
        title=device.title,
        table=_table(device),
        conditions=conditions_text(conditions),
        kind=kind_of(recordings),
        launches=tuple(map(launch_of, recordings, done)),
        refused=tuple(refused),
        timeline=tuple(_timeline(recordings, done)) if timeline else (),
    )
    return call, tuple(done)


def _timeline(recordings: Sequence[Recording], replays: Sequence[Replay]) -> Iterator[TimelineSlice]:
    """Yield the slices of the first SM, merged where a drawing shows no gap between them, up to a limit."""
    tracks: dict[str, list[TimelineSlice]] = {}
    slices = list(slices_of(recordings, replays, sms=1)) if replays else []
    pixel = max((each.end_ns for each in slices), default=0.0) / _PIXELS
    for each in sorted(slices, key=lambda each: each.begin_ns):
        track = tracks.setdefault(each.track, [])
        # The phases of a barrier are shown one by one.
        name = "phase" if each.track.startswith("barrier: ") else each.name
        last = track[-1] if track else None
        if last is not None and last.name == name and name != "phase" and each.begin_ns - last.end_ns < pixel:
            end = max(last.end_ns, each.end_ns)
            track[-1] = last.model_copy(update={"end_ns": end, "merged": last.merged + 1})
        else:
            source = str(each.details.get("line", ""))
            track.append(
                TimelineSlice(track=each.track, name=name, begin_ns=each.begin_ns, end_ns=each.end_ns, source=source)
            )
    order = dict.fromkeys(each.track for each in slices)
    merged = [each for track in order for each in tracks[track]]
    # Of too many slices the longest are shown.
    longest = sorted(merged, key=lambda each: each.begin_ns - each.end_ns)[:_SLICES]
    kept = set(map(id, longest))
    yield from (each for each in merged if id(each) in kept)


def launch_of(recording: Recording, done: Replay) -> ModelledLaunch:
    """Return what a replay of a launch found."""
    x, y, z = recording.grid
    return ModelledLaunch(
        kernel=recording.kernel,
        ctas=x * y * z,
        us=done.total_us,
        kernel_us=done.kernel_us,
        launch_us=done.launch_us,
        fill_us=done.fill_us,
        drain_us=done.drain_us,
        tail_us=done.tail_us,
        waves=done.waves,
        bound=done.bound,
        busy=tuple(UnitBusy(unit=unit, busiest=most, mean=mean) for unit, (most, mean) in done.busy.items()),
        path=tuple(
            PathPart(role=part.role, source=part.site, cause=part.waits_for, us=part.us) for part in done.path[:_LINES]
        ),
        waits=tuple(PathWait(role=each.role, source=each.site, count=each.count) for each in done.waits[:_LINES]),
        notes=done.notes,
    )
