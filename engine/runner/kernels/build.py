"""Builds the CPU library from the C sources beside this file, once for each source, compiler and instruction set.

At first use only what this machine runs is compiled, in a few seconds; `python -m engine.runner.kernels.build` does
that ahead of time, and with `--all` for every instruction set, as an image for several machines needs it. The results
lie in the folder RECIPE_CACHE_DIR names, else under XDG_CACHE_HOME or ~/.cache.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from hashlib import blake2s
from pathlib import Path
from time import perf_counter

FOLDER = Path(__file__).parent
COMMON_FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-ffp-contract=off", "-Wno-psabi")
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
SETS = {"plain": (), "avx2": _AVX2, "avx512": _AVX512, "avx512bf16": (*_AVX512, "-mavx512bf16")}
_NEEDED_FLAGS = {
    "avx2": {"avx2", "fma"},
    "avx512": {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
}
_NEEDED_FLAGS["avx512bf16"] = _NEEDED_FLAGS["avx512"] | {"avx512_bf16"}
SET_SOURCES = ("cpu_decode.c", "cpu_sample.c")  # once for each instruction set
OTHER_SOURCES = ("cpu_library.c", "cpu_pack.c", "cpu_pool.c")


class BuildError(RuntimeError):
    """The library cannot be built; the message says in one line why."""


def all_sets() -> tuple[str, ...]:
    """The instruction sets that can be compiled for this architecture, from the least to the best."""
    return tuple(SETS) if platform.machine() in ("x86_64", "AMD64") else ("plain",)


def best_set() -> str:
    """The best instruction set of this machine."""
    flags = _cpu_flags()
    return [name for name in all_sets() if _NEEDED_FLAGS.get(name, set()) <= flags][-1]


def build_library(sets: Iterable[str] | None = None, folder: Path | None = None) -> tuple[Path, float]:
    """The library for `sets` (the best one by default) and the seconds it took to build, 0 when it was there already.

    Raises `BuildError` when there is no compiler and no library either, or when the compiler fails.
    """
    chosen, folder = tuple(sets or (best_set(),)), folder or cache_folder()
    found = _built(folder, chosen) or _built(folder, all_sets())
    if found is not None:
        return found, 0.0
    compiler, started = find_compiler(), perf_counter()
    path = folder / f"{_stem(chosen)}-{_compiler_key(compiler)}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            _compile(compiler, chosen, Path(scratch)).replace(path)
    except OSError as problem:
        raise BuildError(f"the CPU kernels cannot be built in {folder}: {problem}") from problem
    return path, perf_counter() - started


def _built(folder: Path, sets: tuple[str, ...]) -> Path | None:
    """A library of these sources that this compiler built, or any compiler where there is none."""
    try:
        compiler = _compiler_key(find_compiler())
    except BuildError:
        compiler = "*"
    return next(iter(sorted(folder.glob(f"{_stem(sets)}-{compiler}.so"))), None)


def find_compiler() -> str:
    """The C compiler: $CC, else cc, gcc or clang from the path."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError("there is no C compiler (cc, gcc or clang)")


def cache_folder() -> Path:
    """Where libraries are kept."""
    own = os.environ.get("RECIPE_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else (Path(base) if base else Path.home() / ".cache") / "recipe-server"


def _compile(compiler: str, sets: tuple[str, ...], scratch: Path) -> Path:
    """Every object in a process of its own, then the link."""
    jobs = {
        f"{Path(source).stem}_{name}.o": [*COMMON_FLAGS, f"-DSET={name}", *SETS[name], source]
        for name in sets
        for source in SET_SOURCES
    }
    defines = [f"-DHAS_{name.upper()}" for name in sets]
    jobs |= {f"{Path(name).stem}.o": [*COMMON_FLAGS, *defines, name] for name in OTHER_SOURCES}
    _wait(*(_start([compiler, *flags, "-c", "-o", str(scratch / target)]) for target, flags in jobs.items()))
    library = scratch / "cpu.so"
    objects = [str(scratch / target) for target in jobs]
    _wait(_start([compiler, "-shared", "-o", str(library), *objects, "-lm", "-lpthread"]))
    return library


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _wait(*processes: subprocess.Popen[str]) -> None:
    results = [(process, process.communicate()[1]) for process in processes]
    for process, errors in results:
        if process.returncode:
            lines = [line for line in errors.splitlines() if "error" in line] or errors.splitlines() or ["no message"]
            raise BuildError(f"the C compiler failed: {lines[0]}")


def _stem(sets: tuple[str, ...]) -> str:
    """A file name that changes with every source, flag and instruction set."""
    digest = blake2s(repr((COMMON_FLAGS, [(name, SETS[name]) for name in sets])).encode(), digest_size=8)
    for path in sorted(FOLDER.glob("cpu_*.[ch]")):
        digest.update(path.name.encode() + path.read_bytes())
    return f"cpu-{platform.machine()}-{digest.hexdigest()}"


@cache
def _compiler_key(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return blake2s(f"{compiler} {version}".encode(), digest_size=4).hexdigest()


def _cpu_flags() -> set[str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


def main(arguments: list[str] | None = None) -> int:
    """Build, and say where the library is."""
    parser = argparse.ArgumentParser(description="Build the CPU kernels ahead of time.")
    parser.add_argument("--all", action="store_true", help="for every instruction set, not this machine's best alone")
    parser.add_argument("--folder", type=Path, help=f"where to put the library ({cache_folder()})")
    given = parser.parse_args(arguments)
    try:
        path, seconds = build_library(all_sets() if given.all else None, given.folder)
    except BuildError as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"{path}: {'up to date' if not seconds else f'built in {seconds:.1f} s'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
