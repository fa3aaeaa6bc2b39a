"""What a verdict may say: proved, refuted, unknown, and never one for another."""

import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from pytest_nvfp4.proof import solver, tmem_claims
from pytest_nvfp4.proof.catalogue import cta_claims, judge_all, pure_claims, scale_claims
from pytest_nvfp4.proof.solver import Obligation, Questions, discharge
from pytest_nvfp4.proof.statement import Cases, Control, Limits, Method, Status, judge
from pytest_nvfp4.report.proofs import all_proved, proof_document
from pytest_nvfp4.report.render import render_html, render_text
from tests.proof.statements import claim, cubes

z3 = pytest.importorskip("z3")

HOLDS, FAILS = Cases(lambda: (None, 3)), Cases(lambda: ("case 2", 3))


def test_a_time_limit_is_unknown_and_never_a_pass():
    statement = judge(claim(Questions(cubes), method=Method.Z3), Limits(query_ms=30))
    assert statement.status is Status.UNKNOWN
    assert statement.verdict == "unknown"
    assert "30 ms" in statement.reason or "incomplete" in statement.reason
    assert not all_proved([statement])


def test_an_undecidable_hypothesis_is_unknown_too():
    def build(z3):
        x, y, z = z3.Ints("x y z")
        return [Obligation("after the cubes", {"cubes": x**3 + y**3 + z**3 == 33}, x == x)]

    assert judge(claim(Questions(build), method=Method.Z3), Limits(query_ms=30)).status is Status.UNKNOWN


def test_contradicting_hypotheses_prove_nothing():
    x = z3.Int("x")
    verdict = discharge(z3, Obligation("void", {"x > 0": x > 0, "x < 0": x < 0}, x == 7), Limits())
    assert verdict.status is Status.UNKNOWN
    assert "contradict" in verdict.reason


def test_a_counterexample_has_its_values():
    x = z3.Int("x")
    verdict = discharge(z3, Obligation("small", {"x > 3": x > 3}, x < 5, {"x": x}), Limits())
    assert verdict.status is Status.REFUTED
    assert "small fails at x = " in verdict.counterexample
    assert int(verdict.counterexample.rpartition("=")[2]) >= 5


def test_a_control_that_is_not_refuted_takes_the_proof_with_it():
    assert judge(claim(HOLDS, controls=[Control("wrong", FAILS)])).status is Status.PROVED
    statement = judge(claim(HOLDS, controls=[Control("wrong", FAILS), Control("not wrong at all", HOLDS)]))
    assert statement.status is Status.UNKNOWN
    assert "not wrong at all" in statement.reason


def test_a_refuted_claim_stays_refuted_whatever_its_controls_say():
    statement = judge(claim(FAILS, controls=[Control("not wrong", HOLDS)]))
    assert (statement.status, statement.counterexample, statement.verdict) == (Status.REFUTED, "case 2", "refuted")


def test_nothing_to_look_at_is_no_proof():
    assert judge(claim(Cases(lambda: (None, 0)))).status is Status.UNKNOWN
    assert judge(claim(Questions(lambda _: []), method=Method.Z3)).status is Status.UNKNOWN
    assert not all_proved([])


@pytest.mark.usefixtures("no_solver")
def test_without_the_solver_its_claims_are_unknown_and_the_others_proved():
    assert solver.version() == ""
    statements = judge_all(pure_claims())
    for statement in statements:
        if statement.method is Method.Z3:
            assert statement.status is Status.UNKNOWN
            assert "pip install 'pytest-nvfp4[proof]'" in statement.reason
            assert statement.solver == ""
        else:
            assert statement.status is Status.PROVED, statement
    assert {one.method for one in statements if one.status is Status.PROVED} == {Method.EXHAUSTIVE, Method.CANONICAL}
    assert not proof_document(statements, title="").data["ok"]


@pytest.mark.usefixtures("no_solver")
def test_the_missing_solver_is_named():
    with pytest.raises(solver.SolverMissingError, match="pip install"):
        solver.load()


@pytest.mark.parametrize("raises", ["Exception('libz3.so not found.')", "ModuleNotFoundError('no pkg', name='pkg')"])
def test_a_solver_that_cannot_be_imported_is_unknown_and_says_why(monkeypatch, tmp_path, raises):
    (tmp_path / "z3.py").write_text(f"raise {raises}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "z3")
    assert solver.version() == ""
    statement = judge(claim(Questions(cubes), method=Method.Z3))
    assert statement.status is Status.UNKNOWN
    assert statement.reason.startswith("z3 is installed and cannot be imported (")
    assert "pip install --force-reinstall z3-solver" in statement.reason


def test_the_package_does_not_import_the_solver_before_it_is_asked():
    source = (
        "import sys, pytest_nvfp4.proof.catalogue as c, pytest_nvfp4.report.proofs\n"
        "c.pure_claims()\n"
        "assert not {'z3', 'torch', 'cutlass', 'jinja2'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=900)


# --- the catalogue -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged():
    return judge_all(pure_claims(), Limits(query_ms=600_000))


@pytest.mark.slow
def test_everything_is_proved_and_every_control_refuted_with_a_counterexample(judged):
    for statement in judged:
        assert statement.status is Status.PROVED, statement
        assert statement.controls, f"{statement.name} has no negative control"
        for control in statement.controls:
            assert control.status is Status.REFUTED, (statement.name, control)
            assert control.counterexample
    names = [statement.name for statement in judged]
    assert len(set(names)) == len(names)
    assert {"cta-indexing.bijection", "cta-indexing.int32", "scale-factors.cublas-16"} <= set(names)


@pytest.mark.slow
def test_controls_of_the_map_show_problems(judged):
    shown = [c.counterexample for s in judged if s.name.startswith("cta-indexing") for c in s.controls]
    assert sum("problem" in text for text in shown) >= 12


# --- reports -------------------------------------------------------------------------------------------------------


def test_json_says_everything(judged):
    data = json.loads(json.dumps(proof_document(judged, title="").data))
    assert data["ok"] is True
    assert data["solver"].startswith("z3 ")
    first = data["statements"][0]
    assert set(first) >= {"words", "formulas", "method", "seconds", "solver", "preconditions", "controls", "status"}
    assert first["controls"][0]["counterexample"]
    assert proof_document(judged, title="", missing=["a tensor"]).data["ok"] is False


def test_lines_keep_proved_and_unknown_apart(judged):
    unknown = judge(claim(Cases(lambda: (None, 0))))
    text = render_text(proof_document([judged[0], unknown], title=""))
    assert "PROVED BY Z3" in text
    assert "unknown because: there are no cases to check" in text
    assert "1 proved, 1 unknown" in text
    assert "measured" in text.splitlines()[-1]
    brief, whole = (render_text(proof_document(judged, title="", brief=brief)) for brief in (True, False))
    assert len(brief) < len(whole)


def test_the_page_is_well_formed_and_escapes_what_it_shows(judged):
    bad = judge(replace(claim(Cases(lambda: ("<script>alert(1)</script>", 1))), words="a < b & c"))
    page = render_html(proof_document([*judged, bad], title="Proofs", missing=["x < y"]))
    assert "<script>" not in page
    ElementTree.fromstring(page.partition("\n")[2])
    HTMLParser().feed(page)
    assert page.index("REFUTED") < page.index("PROVED BY Z3"), "what failed comes first"
    assert all(statement.name in page for statement in judged)


def test_the_catalogue_is_its_topics():
    names = [c.name for c in pure_claims()]
    assert names == [c.name for c in (*cta_claims(), *scale_claims(), *tmem_claims.claims())]
    assert {name.partition(".")[0] for name in names} == {"cta-indexing", "scale-factors", "tmem"}
