"""Every golden case has the outcome of the reference. One test a family; a failure shows the first differences."""

import pytest

import recipe
from tests.oracle.corpus import by_family, exceptions, golden_cases
from tests.oracle.outcome import Json
from tests.oracle.report import against_golden

TESTED_APART = ("image", "fetch")


def families(*, image_or_fetch: bool) -> list[object]:
    cases = [case for case in golden_cases() if case["id"] not in exceptions()]
    chosen = [case for case in cases if (case["kind"] in TESTED_APART) is image_or_fetch]
    return [pytest.param(group, id=family) for family, group in by_family(chosen).items()]


@pytest.mark.parametrize("cases", families(image_or_fetch=False))
def test_a_family_of_golden_cases_has_the_outcomes_of_the_reference(cases: list[Json]) -> None:
    tally = against_golden(recipe, cases)
    if tally.failed:
        pytest.fail(str(tally), pytrace=False)


@pytest.mark.parametrize("cases", families(image_or_fetch=True))
def test_a_family_of_image_cases_has_the_outcomes_of_the_reference(cases: list[Json]) -> None:
    tally = against_golden(recipe, cases)
    if tally.failed:
        pytest.fail(str(tally), pytrace=False)


def test_every_exception_names_a_golden_case_and_a_reason() -> None:
    known = {case["id"] for case in golden_cases()}
    assert set(exceptions()) <= known
    assert all(reason.strip() for reason in exceptions().values())
