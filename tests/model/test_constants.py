"""Device tables: what cannot be loaded, inheritance, and the rates of matrix instructions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_nvfp4.model.constants import DEVICES, UNITS, ConstantsError, describe, load_device, read_device

BASE = 'name = "mine"\ntitle = "Mine"\narch = ["sm_100a"]\nversion = 1\nbased_on = "b200"\n'
CLOCK = '[constant.clock]\nvalue = 1.5\nunit = "GHz"\nspread = 0.1\nmark = "guessed"\nsource = "a guess for tests"\n'
SMS = '[constant.sms]\nvalue = {}\nunit = "SM"\nspread = 0\nmark = "guessed"\nsource = "a guess for tests"\n'
MATRIX = (
    '[matrix]\nsource = "a guess for tests"\nmark = "guessed"\ntile = 256\nlatency = 140\n'
    'rows = [["f16", "ss", 1, 128, 64, {}, 168.0]]\n'
)


@pytest.mark.parametrize("name", DEVICES)
def test_each_constant_has_a_unit_and_a_source(name: str):
    rows = describe(load_device(name))
    assert [row["name"] for row in rows] == list(UNITS)
    assert all(len(row["source"]) > 8 and row["unit"] == UNITS[row["name"]] for row in rows)


def test_a_table_takes_the_rest_from_another_and_says_so():
    device = read_device(BASE + CLOCK, "mine.toml")
    assert device["clock"] == 1.5
    assert device["dram"] == load_device("b200")["dram"]
    assert device.constants["dram"].mark == "sibling"
    assert device.constants["dram"].source.startswith("of b200: ")
    assert device.constants["tmem_column"].mark == "guessed"
    assert device.digest != load_device("b200").digest


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda text: text.replace('source = "a guess for tests"\n', ""), "constant.clock.source: Field required"),
        (lambda text: text.replace("a guess for tests", ""), "constant.clock.source: String should have at least"),
        (lambda text: text.replace('"GHz"', '"MHz"'), "clock: the unit is 'MHz', not 'GHz'"),
        (lambda text: text.replace("1.5", "0"), "clock: must be above 0"),
        (lambda text: text.replace("1.5", "inf"), "finite"),
        (lambda text: text.replace("1.5", "-1"), "greater than or equal to 0"),
        (lambda text: text.replace('"guessed"', '"fitted"'), "needs `points`"),
        (lambda text: text.replace('"guessed"', '"measured_here"'), "needs `device`"),
        (lambda text: text.replace('"guessed"', '"known"'), "constant.clock.mark"),
        (lambda text: text.replace("constant.clock", "constant.clok"), "clok: no such constant"),
        (lambda text: text.replace('based_on = "b200"\n', ""), "sms: missing"),
        (lambda text: text + "[[", "is not TOML"),
        (lambda text: text.replace('"mine"', '""'), "name: String should have at least"),
        (lambda text: text.replace('"Mine"', f'"{"x" * 5000}"'), "title: String should have at most"),
        (lambda text: text + SMS.format("0.5"), "sms: must be a whole number from 1 to 10000"),
        (lambda text: text + SMS.format("1e300"), "sms: must be a whole number from 1 to 10000"),
        (lambda text: text + MATRIX.format("-48.0"), "matrix.rows.0.5: Input should be greater than 0"),
    ],
)
def test_a_wrong_table_is_refused(change: Callable[[str], str], complaint: str):
    with pytest.raises(ConstantsError) as caught:
        read_device(change(BASE + CLOCK), "mine.toml")
    assert complaint in str(caught.value)
    assert "mine.toml" in str(caught.value)


def test_an_unknown_device_names_those_that_exist():
    with pytest.raises(ConstantsError, match="b200, b300, h100, h200"):
        load_device("b100")


def test_matrix_rates_are_the_table_and_between_its_rows_linear():
    device = load_device("b200")
    assert device.matrix_rate("f16", False, 1, 128, 128).interval == 64.02
    between = device.matrix_rate("f16", False, 1, 128, 104)
    assert between.interval == pytest.approx((56.02 + 60.01) / 2)
    assert not between.exact
    small = device.matrix_rate("f16", False, 1, 128, 16)
    assert small.interval == (128 + 16) * 32 / 128
    hopper = load_device("h200")
    assert hopper.matrix_rate("f16", False, 1, 64, 256).interval == 128  # arXiv 2501.12084


def test_a_row_alone_holds_at_its_n():
    device = read_device(BASE + CLOCK + MATRIX.format("99.0"), "mine.toml")
    assert device.matrix_rate("f16", False, 1, 128, 64).interval == 99.0
    assert not device.matrix_rate("f16", False, 1, 128, 96).exact


def test_a_shape_has_one_row():
    rows = MATRIX.format('48.0, 168.0], ["f16", "ss", 1, 128, 64, 49.0')
    with pytest.raises(ConstantsError, match=r"matrix: \('f16', 'ss', 1, 128, 64\) has 2 rows"):
        read_device(BASE + CLOCK + rows, "mine.toml")


def test_no_more_clusters_than_sms():
    device = load_device("b200")
    assert [device.clusters(size) for size in (1, 2, 4)] == [148, 74, 33]
    assert 33 <= device.clusters(3) <= 49
    with pytest.raises(ConstantsError):
        device.clusters(32)
