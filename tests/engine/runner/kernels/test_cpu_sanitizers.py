"""Whole steps of a random model on many threads under the compiler's sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.engine.runner.kernels.building import compile_driver, runnable_sets


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_steps_are_clean_and_batches_change_no_bit(sanitizers: str, tmp_path: Path) -> None:
    flags = ("-g", "-O1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")
    try:
        program = compile_driver(runnable_sets()[-1], tmp_path / "driver", *flags)
    except subprocess.CalledProcessError as problem:
        if "cannot find" in problem.stderr:
            pytest.skip(f"this compiler has no {sanitizers} sanitizer")
        raise
    done = subprocess.run([program, "4"], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "0 of 12 rows differ\n"


def test_steps_are_the_same_on_one_thread_and_on_plain_instructions(tmp_path: Path) -> None:
    program = compile_driver("plain", tmp_path / "driver", "-O1")
    for threads in ("1", "3"):
        done = subprocess.run([program, threads], capture_output=True, text=True, check=False, timeout=280)
        assert done.stdout == "0 of 12 rows differ\n"
