"""Random cases lead to the same outcomes here and in the reference.

Each run draws a fresh seed; a failure shows it, and `ORACLE_SEED=... pytest` draws the same cases again.
"""

import os
import random

import deepseek_recipe
import pytest

import recipe
from tests.oracle import fuzz
from tests.oracle.outcome import Json
from tests.oracle.report import against_reference

DRAWS = 2_000
FAMILIES = ("fuzz.convert", "fuzz.render", "fuzz.direct", "fuzz.stream")


@pytest.fixture(scope="module")
def seed() -> str:
    return os.environ.get("ORACLE_SEED") or str(random.SystemRandom().randrange(10**9))


@pytest.fixture(scope="module")
def cases(seed: str) -> list[Json]:
    return fuzz.generate(seed, DRAWS)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_cases_have_the_outcomes_of_the_reference(family: str, cases: list[Json], seed: str) -> None:
    chosen = [case for case in cases if case["family"] == family]
    tally = against_reference(recipe, deepseek_recipe, chosen)
    if tally.failed:
        pytest.fail(f"ORACLE_SEED={seed}: {tally}", pytrace=False)
