"""The house rules that a reader can rely on: who imports whom, what stays light, how long things get."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*ROOT.glob("recipe/**/*.py"), *ROOT.glob("engine/**/*.py"), ROOT / "server.py"])
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

AIOHTTP_HOMES = ("server.py", "engine/entrypoints/", "engine/backends/remote", "recipe/image/fetcher.py")
RECIPE_FOR_ENGINE = {"recipe.stream.inference", "recipe.encoding.tokenizer", "recipe.request"}
HEAVY = {"torch", "cupy", "numpy", "transformers", "aiohttp", "cv2", "gguf", "safetensors", "llguidance"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(path: Path, *, module_level_only: bool = False) -> Iterator[str]:
    """Dotted names of everything a file imports, `from a import b` as both `a` and `a.b`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if module_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def packages_of(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(path)}


def in_room(path: Path, *rooms: str) -> bool:
    return relative(path).startswith(rooms)


@pytest.mark.parametrize("path", [p for p in SOURCES if in_room(p, "recipe/")], ids=relative)
def test_recipe_knows_no_engine_and_no_tensor_library(path: Path) -> None:
    assert not packages_of(path) & {"engine", "server", "torch", "cupy", "transformers", "deepseek_recipe"}


@pytest.mark.parametrize("path", [p for p in SOURCES if in_room(p, "engine/core/")], ids=relative)
def test_the_core_decides_without_torch_and_without_the_runner(path: Path) -> None:
    assert not packages_of(path) & {"torch", "cupy", "numpy", "aiohttp"}
    assert not [name for name in imports_of(path) if name.startswith(("engine.runner", "engine.grammar"))]


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if in_room(p, "engine/") and not in_room(p, "engine/entrypoints/")], ids=relative
)
def test_the_engine_takes_only_the_seam_from_the_recipe(path: Path) -> None:
    taken = {node for node in imports_of(path) if node.startswith("recipe.")}
    modules = {name for name in taken if not any(name.startswith(home + ".") for home in RECIPE_FOR_ENGINE)}
    assert modules <= RECIPE_FOR_ENGINE
    from_request = {name for name in taken if name.startswith("recipe.request.")}
    assert from_request <= {"recipe.request.OutputConstraint"}


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_nobody_imports_the_program_or_the_reference(path: Path) -> None:
    assert not packages_of(path) & {"server", "deepseek_recipe"}


@pytest.mark.parametrize("path", [p for p in SOURCES if not in_room(p, *AIOHTTP_HOMES)], ids=relative)
def test_aiohttp_stays_where_http_is(path: Path) -> None:
    assert "aiohttp" not in packages_of(path)


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name == "__init__.py" or p.name == "server.py"], ids=relative)
def test_packages_and_the_program_import_nothing_heavy(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(path, module_level_only=True)} & HEAVY


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_validation_raises_exceptions_and_never_asserts(path: Path) -> None:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    assert not [node.lineno for node in nodes if isinstance(node, ast.Assert)]


@pytest.mark.parametrize("path", [p for p in SOURCES if p.read_text(encoding="utf-8").strip()], ids=relative)
def test_every_file_opens_with_its_strategy(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_the_top_level_holds_what_the_design_names() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    allowed = {"server.py", "recipe", "engine", "tests", "scripts", "setup.cfg", "README.md", "LICENSE"}
    assert top <= allowed | {".ci", ".gitignore", "pyproject.toml"}


@pytest.mark.parametrize("module", ["recipe", "recipe.prepare", "engine", "engine.backend", "server"])
def test_importing_what_workers_import_loads_no_torch(module: str) -> None:
    heavy = "('torch', 'transformers', 'cv2')"
    code = f"import sys, {module}; sys.exit(' '.join(m for m in {heavy} if m in sys.modules) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
