"""Building the CPU library: once, found again, by whatever compiler there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.runner.kernels import build
from engine.runner.kernels.cpu_library import INSTRUCTION_SETS, load_library
from tests.engine.runner.kernels.building import require_compiler


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the best set's library is built already."""
    require_compiler()
    folder = tmp_path_factory.mktemp("cache")
    build.build_library(folder=folder)
    return folder


def without_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)


def failing_compiler(tmp_path: Path) -> Path:
    path = tmp_path / "cc"
    path.write_text('#!/bin/sh\necho "warming up" >&2\necho "cpu_decode.c:1: error: no such luck" >&2\nexit 1\n')
    path.chmod(0o755)
    return path


def test_what_was_built_is_found_again(folder: Path) -> None:
    path, seconds = build.build_library(folder=folder)
    assert seconds == 0
    assert [path] == list(folder.iterdir())


def test_the_library_runs_the_best_set_of_this_machine(folder: Path) -> None:
    library = load_library(build.build_library(folder=folder)[0])
    assert INSTRUCTION_SETS[library.best_set()] == build.best_set()


def test_where_there_is_no_compiler_a_library_built_elsewhere_serves(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = build.build_library(folder=folder)
    without_compiler(monkeypatch, tmp_path)
    assert build.build_library(folder=folder) == built
    with pytest.raises(build.BuildError, match="no C compiler"):
        build.build_library(folder=tmp_path)


def test_the_first_error_of_a_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(failing_compiler(tmp_path)))
    with pytest.raises(build.BuildError, match=r"^the C compiler failed: cpu_decode\.c:1: error: no such luck$"):
        build.build_library(folder=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_compiler_builds_another_library(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(failing_compiler(tmp_path)))
    with pytest.raises(build.BuildError, match="failed"):
        build.build_library(folder=folder)


def test_the_command_says_where_the_library_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main(["--folder", str(folder)]) == 0
    assert capsys.readouterr().out == f"{next(folder.iterdir())}: up to date\n"


def test_the_command_tells_why_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_compiler(monkeypatch, tmp_path)
    assert build.main(["--folder", str(tmp_path / "cache")]) == 1
    assert capsys.readouterr().err == "there is no C compiler (cc, gcc or clang)\n"


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECIPE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "recipe-server"
    monkeypatch.setenv("RECIPE_CACHE_DIR", str(tmp_path / "own"))
    assert build.cache_folder() == tmp_path / "own"
