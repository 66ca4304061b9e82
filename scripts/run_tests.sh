#!/usr/bin/env bash
# All tests, in passes with a count each. Called by `make test`.
# SBX_ENGINES="docker20 podman" limits the engines that the contract runs on; by default all are brought up.
# Every pass runs, also after one has failed, so that one look shows all that is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
failed=()
outcomes=$(mktemp)  # how every test ended, in whichever pass
said=$(mktemp)      # what ran beside the first pass said, shown in one piece
wrong=$(mktemp)     # and what of it failed, a line each
unsteady=$(mktemp)  # tests that failed, and then passed on their own
beside=
finish() {
    if [[ -n $beside ]]; then
        kill -- "-$beside" 2>/dev/null || true
        cat "$said"
    fi
    rm -f "$outcomes" "$said" "$wrong" "$unsteady"
}
trap finish EXIT
trap 'exit 130' INT # pytest has ended by it too, which is no failed pass

pass() {
    local name=$1
    shift
    echo
    echo "== $name"
    "$python" -m scripts.run_pass "$unsteady" -q --durations=8 --durations-min=5 --continue-on-collection-errors \
        --outcomes "$outcomes" "$@" </dev/null || failed+=("$name")
}

exports=$("$python" -m scripts.engine up)
eval "$exports"

run_beside() {
    scripts/run_gates.sh || failed+=("the gates: lint, types, lowest versions, other Pythons")
    pass "contract: the fake, and E2B at its stand-in" contract -m "not engine and not e2b"
    printf '%s\n' "${failed[@]}" >"$wrong"
    ((${#failed[@]} == 0)) || return 1
}

# The first pass keeps one core busy and no more. In a group of its own, so that it can be ended.
set -m
run_beside >"$said" 2>&1 </dev/null &
beside=$!
set +m
pass "unit: no engine, no network" tests -m "not engine and not e2b"
wait "$beside" || [[ -s $wrong ]] || echo "what ran beside the unit tests ended with $?" >"$wrong"
beside=
cat "$said"
while read -r name; do failed+=(${name:+"$name"}); done <"$wrong"

pass "engine: $SBX_TEST_IMAGE at $DOCKER_HOST" tests contract -m engine --require docker

# At the same time: on two cores that takes half as long as one after another. gVisor's contract, which would
# be the longest part, is left to `make engines`; the proof of its tier is not.
further=$("$python" -m scripts.engines_matrix --list) || failed+=("the list of further engines")
if [[ -n $further ]]; then
    echo
    echo "== contract beside the first engine: $further"
    # shellcheck disable=SC2086
    "$python" -m scripts.engines_matrix $further --together --outcomes "$outcomes" </dev/null \
        || failed+=("contract on one of: $further")
fi

echo
echo "== guarantees: did each promise's test run and pass"
"$python" -m scripts.guarantees "$outcomes" "$unsteady" || failed+=("guarantees")

echo
if [[ -s $unsteady ]]; then
    echo "unsteady, a fault to look for (failed, then passed three times on its own):"
    sed 's/^/    /' "$unsteady"
fi
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}"
    exit 1
fi
echo "all passes passed"
