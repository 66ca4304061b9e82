#!/usr/bin/env bash
# All tests, in three passes with a count each. Called by `make test`.
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

echo
echo "== guarantees: did each promise's test run and pass"
"$python" -m scripts.guarantees "$outcomes" || failed+=("guarantees")

echo
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}"
    exit 1
fi
echo "all passes passed"
