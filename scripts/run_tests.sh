#!/usr/bin/env bash
# All tests, in passes with a count each. Called by `make test`.
# SBX_ENGINES="docker20 podman" limits the engines that the contract runs on; by default all are brought up.
# Every pass runs, also after one has failed, so that one look shows all that is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
failed=()
outcomes=$(mktemp)  # how every test ended, in whichever pass
trap 'rm -f "$outcomes"' EXIT

pass() {
    local name=$1
    shift
    echo
    echo "== $name"
    "$python" -m pytest -q --continue-on-collection-errors --outcomes "$outcomes" "$@" </dev/null || failed+=("$name")
}

exports=$("$python" -m scripts.engine up)
eval "$exports"

pass "unit: no engine, no network" tests -m "not engine and not e2b"
pass "contract: the fake, and E2B at its stand-in" contract -m "not engine and not e2b"
pass "engine: $SBX_TEST_IMAGE at $DOCKER_HOST" tests contract -m engine --require docker

# At the same time: on two cores that takes half as long as one after another.
further=$("$python" -m scripts.engines_matrix --list)
if [[ -n $further ]]; then
    echo
    echo "== contract beside the first engine: $further"
    # shellcheck disable=SC2086
    "$python" -m scripts.engines_matrix $further --together --outcomes "$outcomes" </dev/null \
        || failed+=("contract on one of: $further")
fi

scripts/run_gates.sh || failed+=("the gates above: lint, types, lowest versions, other Pythons")

echo
echo "== guarantees: did each promise's test run and pass"
"$python" -m scripts.guarantees "$outcomes" || failed+=("guarantees")

echo
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}"
    exit 1
fi
echo "all passes passed"
