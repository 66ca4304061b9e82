#!/usr/bin/env bash
# What `make test` runs beside the tests on this Python: lint, types, and the short form of the tests with
# the lowest versions and on the other Pythons. A Python that is not here is named, not passed over.
# `make pythons` is the long form.
set -euo pipefail
cd "$(dirname "$0")/.."

tox=(.venv/bin/python -m tox run -q --skip-missing-interpreters false)
failed=()
trap 'exit 130' INT # and not on to the next gate

gate() {
    local name=$1 began=$SECONDS
    shift
    echo
    echo "== $name"
    "$@" </dev/null || failed+=("$name")
    echo "($((SECONDS - began)) s)"
}

# The folder of python$1, where one starts: in the PATH, the one of .venv, or pyenv's.
folder_of() {
    local program
    for program in "$(command -v "python$1")" ".venv/bin/python$1" "$HOME"/.pyenv/versions/"$1".*/bin/"python$1"; do
        if [ -x "$program" ] && "$program" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            dirname "$program"
            return
        fi
    done
    return 1
}

on_python() {
    local version=$1 environment=$2 name=$3 folder
    if folder=$(folder_of "$version"); then
        gate "$name" env PATH="$folder:$PATH" "${tox[@]}" -e "$environment"
    else
        echo
        echo "== $name: NOT RUN, there is no python$version here (PATH, ~/.pyenv)"
    fi
}

gate lint make lint
gate types make types
on_python 3.11 lowest-core "the lowest versions allowed, in short"
on_python 3.12 py312-core "Python 3.12, in short"
on_python 3.13 py313-core "Python 3.13, in short"

if ((${#failed[@]})); then
    printf '\nfailed gate: %s\n' "${failed[@]}"
    exit 1
fi
