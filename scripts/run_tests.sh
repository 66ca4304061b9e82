#!/usr/bin/env bash
# All tests, in passes with a count each. Called by `make test`.
# SBX_ENGINES="docker20 podman" limits the engines that the contract runs on; by default all are brought up.
# Every pass runs, also after one has failed, so that one look shows all that is wrong.
#
# Most tests wait for a process or an engine, so several lanes of passes run at once. What one lane says is seen
# as it comes; what the others say is shown in one piece when they are over.
set -euo pipefail
cd "$(dirname "$0")/.."

python=.venv/bin/python
work=$(mktemp -d)
outcomes=$work/outcomes # how every test ended, in whichever pass
unsteady=$work/unsteady # tests that failed, and then passed on their own
failed=$work/failed     # what has failed, a line each
touch "$outcomes" "$unsteady" "$failed"
lanes=()

fail() { echo "$1" >>"$failed"; }

# Start a lane, in a process group of its own, so that it can be ended.
lane() {
    set -m
    (
        trap 'exit 130' INT # and not on to its next pass
        if [[ ${2-} == live ]]; then "$1"; else "$1" >"$work/$1" 2>&1; fi
    ) </dev/null &
    set +m
    lanes+=("$1 $!")
}

# Wait for the lanes, show what they said.
joined() {
    local each name pid
    for each in ${lanes[@]+"${lanes[@]}"}; do
        name=${each% *} pid=${each#* }
        wait "$pid" || fail "the lane $name, which ended with $?"
    done
    told
    lanes=()
}

told() {
    local each
    for each in ${lanes[@]+"${lanes[@]}"}; do
        [[ ! -e $work/${each% *} ]] || cat "$work/${each% *}"
    done
}

# Broken off, lanes are ended as by Ctrl-C, so that they take down what they made.
finish() {
    local each
    for each in ${lanes[@]+"${lanes[@]}"}; do
        kill -INT -- "-${each#* }" 2>/dev/null || true
    done
    for each in ${lanes[@]+"${lanes[@]}"}; do
        wait "${each#* }" || true
    done
    told
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

pass() {
    local name=$1
    shift
    echo
    echo "== $name"
    "$python" -m scripts.run_pass "$unsteady" -q --durations=8 --durations-min=5 --continue-on-collection-errors \
        --outcomes "$outcomes" "$@" </dev/null || fail "$name"
}

exports=$("$python" -m scripts.engine up)
eval "$exports"

# Without an engine

no_engine=(-m "not engine and not e2b")
servers=(tests/e2b tests/e2b_standin tests/mcp tests/testing)

gates() {
    scripts/run_gates.sh || fail "the gates: lint, types, lowest versions, other Pythons"
    pass "contract: the fake, and E2B at its stand-in" contract "${no_engine[@]}"
}
unit_of_servers() {
    pass "unit: E2B at its stand-in, MCP, what is for tests" "${servers[@]}" "${no_engine[@]}"
}

unit() {
    pass "unit: all else" tests "${servers[@]/#/--ignore=}" "${no_engine[@]}"
}

lane gates
lane unit_of_servers
lane unit live
joined

# On engines

on_engine=(-m engine --require docker)
images=(tests/real/test_{commands,creator_killed,images,pull}.py)

contract_on_engines() {
    pass "contract: $SBX_TEST_IMAGE at $DOCKER_HOST" contract "${on_engine[@]}"
    # gVisor's contract, which would be the longest part, is left to `make engines`; the proof of its tier is not.
    local further
    further=$("$python" -m scripts.engines_matrix --list) || fail "the list of further engines"
    [[ -n $further ]] || return 0
    echo
    echo "== contract beside the first engine: $further"
    # shellcheck disable=SC2086
    "$python" -m scripts.engines_matrix $further --together --outcomes "$outcomes" </dev/null \
        || fail "contract on one of: $further"
}
engine_of_images() {
    pass "engine: commands, killed creators, images" "${images[@]}" "${on_engine[@]}"
}

engine() {
    pass "engine: all else" tests "${images[@]/#/--ignore=}" "${on_engine[@]}"
}

lane contract_on_engines
lane engine_of_images
lane engine live
joined

echo
echo "== guarantees: did each promise's test run and pass"
"$python" -m scripts.guarantees "$outcomes" "$unsteady" || fail guarantees

echo
if [[ -s $unsteady ]]; then
    echo "unsteady, a fault to look for (failed, then passed three times on its own):"
    sed 's/^/    /' "$unsteady"
fi
if [[ -s $failed ]]; then
    sed 's/^/failed: /' "$failed"
    exit 1
fi
echo "all passes passed"
