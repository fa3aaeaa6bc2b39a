"""Modelled calls of recordings written by hand: facts, bands, refusals, comparisons, documents."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_nvfp4.bench.baseline import BaselineError, modelled_baseline
from pytest_nvfp4.bench.mark import MODELLED_TIMER
from pytest_nvfp4.bench.modelled_facts import TimeChange, causes, modelled_facts, origin, time_change
from pytest_nvfp4.cli.model import page
from pytest_nvfp4.device.modelled import (
    ModelledCall,
    conditions_of,
    conditions_text,
    device_for,
    model_version,
    modelled_call,
)
from pytest_nvfp4.model.bands import Band, bands, bands_of, widest
from pytest_nvfp4.model.constants import ConstantsError, load_device, shipped_device
from pytest_nvfp4.model.recording import Recording, Site
from pytest_nvfp4.report.document import Document
from pytest_nvfp4.report.render import OutputFormat, render
from pytest_nvfp4.toolchain.code_hash import PACKAGE
from pytest_nvfp4.toolchain.sheet import Sheet
from tests.model.main_loop import main_loop

B200 = load_device("b200")
CONDITIONS = "cold L2, launched in a stream, 5.9148 TB/s of DRAM"
BAND = Band("b200", "dense tcgen05 GEMM", 40, 1.0, 0.05, 0.12, 0.3, CONDITIONS, "times of a test", "tests/none.py")


def gemm(*, stages: int = 4, n: int = 128) -> Recording:
    return replace(main_loop(128, n, 128, stages, 20), arch="sm_100a")


def moved_site(site: Site) -> Site:
    """Return the site of a copy on another line."""
    return replace(site, source=site.source.replace("load A", "moved"))


def modelled(*recordings: Recording) -> ModelledCall:
    return modelled_call(recordings or (gemm(),), B200, conditions_of("gpumode", B200))


def test_a_call_is_the_sum_of_its_launches_and_its_path_that_of_each() -> None:
    one, two = modelled(), modelled(gemm(), gemm(n=64))
    assert one.kind == "tcgen05 GEMM", "nothing reads the accumulator, which would tell a tile's end"
    assert not one.refused
    assert len(two.launches) == 2
    assert two.us == pytest.approx(sum(launch.us for launch in two.launches))
    for launch in two.launches:
        assert sum(part.us for part in launch.path) == pytest.approx(launch.kernel_us)
        assert launch.us == pytest.approx(launch.kernel_us + launch.launch_us)
    assert ModelledCall.model_validate_json(one.model_dump_json()) == one


def test_without_launches_nothing_is_modelled() -> None:
    assert modelled_call((), B200, conditions_of("single", B200)).refused == ("the call launched no kernel",)


def test_a_refused_recording_keeps_its_reason() -> None:
    call = modelled(replace(gemm(), refused=("its tiles are taken from a counter, k.py:7",)))
    assert call.refused == ("its tiles are taken from a counter, k.py:7",)
    assert not call.launches


def test_the_default_device_is_the_one_that_the_simulator_imitates() -> None:
    assert device_for("sm_100a").name == "b200"
    assert device_for("sm_90a").name == "h200"
    assert device_for("sm_90a", "h100").name == "h100"
    with pytest.raises(ConstantsError, match=r"is for sm_90a, which .* does not run"):
        device_for("sm_90a", "b200")
    with pytest.raises(ConstantsError, match="there is no device"):
        device_for("sm_90a", "b201")


def test_conditions_in_words() -> None:
    assert conditions_text(conditions_of("single", B200)) == "cold L2, launched in a stream"
    words = "cold L2, launched in a stream"
    assert conditions_text(conditions_of("gpumode", B200)) == f"{words}, 5.9148 TB/s of DRAM"
    assert conditions_text(conditions_of("gpumode", load_device("h200"))) == words


class TestBand:
    def test_the_widest_set_of_times_decides_that_has_such_short_ones(self) -> None:
        wide = replace(BAND, p90=0.2, shortest_us=6.0)
        assert widest([BAND, wide], 7.0) is wide
        assert widest([BAND, wide], 5.0) is wide, "a measured time of 6 us may be modelled as 5"
        assert widest([BAND, wide], 4.0) is BAND
        assert widest([wide], 4.0) is None
        assert widest([], 4.0) is None

    def test_bands_are_those_of_a_kind_on_a_device_and_name_a_test_that_exists(self) -> None:
        conditions = {
            ("b200", "grouped tcgen05 GEMM"): "gpumode",
            ("b200", "dense tcgen05 GEMM"): "single",
            ("h200", "wgmma GEMM"): "alone",
            ("h200", "copy"): "alone",
        }
        assert {(band.device, band.kind) for band in bands()} == set(conditions)
        assert not bands_of("h200", "mma GEMM")
        for band in bands():
            name = conditions[band.device, band.kind]
            assert band.conditions == conditions_text(conditions_of(name, shipped_device(band.device)))
            assert (Path(__file__).parents[2] / band.test).is_file()

    def test_an_error_is_a_share_of_the_measured_time(self) -> None:
        low, high = BAND.around(10.0)
        assert (10.0 - low) / low == pytest.approx(0.12)
        assert (high - 10.0) / high == pytest.approx(0.12)

    @pytest.mark.parametrize(
        "change", [{"times": ""}, {"conditions": ""}, {"p90": 0.04}, {"points": 0}, {"p90": 1.0, "worst": 2.0}]
    )
    def test_a_band_without_evidence_or_order_cannot_be_made(self, change: dict[str, object]) -> None:
        with pytest.raises(ValueError, match="band"):
            replace(BAND, **change)  # type: ignore[arg-type]


class TestFacts:
    def test_lines_are_left_out_and_the_path_adds_up(self) -> None:
        call = modelled()
        facts = modelled_facts(call)
        assert float(facts["modelled_us"]) == pytest.approx(call.us, abs=1e-3)
        spent = [float(text) for name, text in facts.items() if ".path." in name]
        assert sum(spent) == pytest.approx(call.launches[0].kernel_us, abs=0.1)
        assert not any("loop.py" in part for pair in facts.items() for part in pair)
        assert list(origin(call)) == ["device", "table", "model", "conditions"]

    def test_what_grew_is_named_with_the_current_line(self) -> None:
        fast, slow = modelled(gemm(stages=4)), modelled(gemm(stages=1))
        change = time_change(modelled_facts(fast), slow)
        assert change.share > 0.1
        assert str(change).startswith(f"modelled {fast.us:.3f} -> {slow.us:.3f} us (+")
        grown = causes(modelled_facts(fast), slow)
        assert grown
        assert all(line.startswith("loop.py:") and line in text for line, text in grown)
        assert causes(modelled_facts(slow), slow) == []

    def test_a_line_is_known_by_its_text_when_it_moves(self) -> None:
        def text_of(place: str) -> str:
            return {"loop.py:load A": "copy(a)", "loop.py:moved": "copy(a)"}.get(place, place.rpartition(":")[2])

        fast = modelled(gemm(stages=4))
        before = modelled_facts(fast, text_of=text_of)
        assert any(name.startswith("launch.0.path.load.") and name.endswith(" @ copy(a)") for name in before)
        assert Sheet.parse(Sheet("model", {}, before).render(), kind="model").facts == before
        moved = replace(gemm(stages=4), sites=tuple(moved_site(site) for site in gemm().sites))
        assert causes(before, modelled(moved), text_of) == []
        assert modelled_facts(modelled(moved), text_of=text_of) == before

    def test_a_wait_that_the_path_did_not_have_comes_first(self) -> None:
        fast, slow = modelled(gemm(stages=20)), modelled(gemm(stages=1))

        def text_of(place: str) -> str:
            return place.rpartition(":")[2]

        before = modelled_facts(fast, text_of=text_of)
        assert "launch.0.waits.load @ wait empty" not in before
        grown = causes(before, slow, text_of)
        first = dict(grown[:2])
        assert set(first) == {"loop.py:wait empty", "loop.py:wait full"}
        said = r"\d+ waits on the path instead of 0: load at loop.py:wait empty, `wait empty`"
        assert re.fullmatch(said, first["loop.py:wait empty"])
        assert " us: " in grown[2][1]

    @pytest.mark.parametrize("text", ["", "fast", "-1", "0", "nan", "inf"])
    def test_a_snapshot_without_a_time_is_damaged(self, text: str) -> None:
        with pytest.raises(ValueError, match="no time"):
            time_change({"modelled_us": text}, modelled())


class TestBaseline:
    def entry(self, call: ModelledCall, **changes: object) -> dict[str, object]:
        extra = {"nvfp4": origin(call) | changes}
        return {"options": {"timer": MODELLED_TIMER}, "extra_info": extra, "stats": {"min": call.us / 1e6}}

    def test_a_modelled_time_is_compared(self) -> None:
        fast, slow = modelled(gemm(stages=4)), modelled(gemm(stages=1))
        change = modelled_baseline({"0001.json": {"k": self.entry(fast)}}, slow, "k")
        assert isinstance(change, TimeChange)
        assert change.share == pytest.approx(slow.us / fast.us - 1)

    def test_one_of_another_table_is_not(self) -> None:
        call = modelled()
        said = modelled_baseline({"0001.json": {"k": self.entry(call, table="0 other")}}, call, "k")
        assert said == "not compared with 0001.json: another table"
        assert modelled_baseline({"0001.json": {}}, call, "k") == "no baseline of this check"

    def test_a_measured_one_is_refused(self) -> None:
        call = modelled()
        measured = self.entry(call) | {"options": {"timer": "nvfp4_device_time"}}
        with pytest.raises(BaselineError, match="modelled times are compared with modelled ones only"):
            modelled_baseline({"0001.json": {"k": measured}}, call, "k")


class TestPage:
    def document(self, call: ModelledCall | None, *answers: page.Answer) -> Document:
        each = page.Modelled("gpumode-0", call, answers, (), "passed" if call else "failed")
        return Document("t", [page.summary([each]), page.section(each, "k.py on gpumode-0", [])], page.as_data(each))

    def test_every_line_with_a_time_says_modelled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pytest_nvfp4.device.modelled.bands_of", lambda *_: [])
        call = modelled()
        text = render(self.document(call, page.Answer("twice the HBM", call.us / 2)), OutputFormat.TEXT)
        assert f"modelled {page.micro(call.us)} us on {B200.title}" in text
        assert "no band: the model was not compared with measured times" in text
        assert "where the time goes (modelled critical path)" in text
        assert "loop.py:mma" in text
        assert "-50.0 %" in text
        assert "measured " not in text.replace("measured times", "")

    def test_the_band_is_that_of_the_data(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pytest_nvfp4.device.modelled.bands_of", lambda *_: [BAND])
        call = modelled()
        low, high = BAND.around(call.us)
        assert f"{page.micro(low)} to {page.micro(high)} us: of 40 measured times" in page.headline(call)
        assert page.as_data(page.Modelled("p", call, (), (), "passed"))["band"]["p90"] == 0.12

    def test_the_band_of_the_shipped_table_is_not_that_of_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pytest_nvfp4.device.modelled.bands_of", lambda *_: [BAND])
        device = B200.changed(clock=1.0)
        call = modelled_call((gemm(),), device, conditions_of("gpumode", device))
        assert call.band is None
        assert "no band: this table has not been validated" in page.headline(call)

    def test_a_band_is_of_its_conditions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pytest_nvfp4.device.modelled.bands_of", lambda *_: [BAND])
        call = modelled_call((gemm(),), B200, conditions_of("single", B200))
        assert call.band is None
        assert "no band: the model was compared with measured times of a" in page.headline(call)
        assert f"under other conditions only (--conditions gpumode: {CONDITIONS})" in page.headline(call)

    def test_a_refusal_is_no_time(self) -> None:
        document = self.document(modelled(replace(gemm(), refused=("its tiles are taken from a counter",))))
        text = render(document, OutputFormat.TEXT)
        assert "no time is modelled:" in text
        assert "- its tiles are taken from a counter" in text.replace("  ", "")
        assert document.data["modelled_us"] is None

    def test_csv_has_one_line_a_problem(self) -> None:
        rows = render(self.document(modelled()), OutputFormat.CSV).splitlines()
        assert rows[0] == "problem,device,modelled_us,low_us,high_us,bound,status"
        assert len(rows) == 2
        assert rows[1].endswith(",modelled")


def test_the_version_of_the_model_is_that_of_its_code(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "model", tmp_path / "model", ignore=shutil.ignore_patterns("__pycache__"))
    model_version.cache_clear()
    assert model_version(tmp_path) == model_version() == modelled().model
    for name, counts in (("timeline.py", False), ("replay_machine.py", True), ("recorder_sync.py", True)):
        before = model_version(tmp_path)
        with (tmp_path / "model" / name).open("a") as file:
            file.write("# another line\n")
        model_version.cache_clear()
        assert (model_version(tmp_path) != before) == counts, name
    before = model_version(tmp_path)
    (tmp_path / "model" / "further.py").touch()
    model_version.cache_clear()
    assert model_version(tmp_path) != before
