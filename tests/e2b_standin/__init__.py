"""A local E2B: its control plane, edge, envd and code interpreter, for tests.

Run it with ``python -m tests.e2b_standin --port 0``. It prints its URL, which serves as both
``E2B_API_URL`` and ``E2B_SANDBOX_URL``, and ends when its standard input closes.

What is real: the Connect framing and message shapes (E2B's own ASGI applications from the ``e2b``
package), processes, files, terminals, exit codes, signals, an ipykernel for code, and what the egress
rules at creation let through, by address. What is played: the placement of sandboxes, memory snapshots
(a paused sandbox is cut off, its processes run on), metrics, egress rules by name and later changes.

Sources: the REST description ``spec/openapi.yml``, ``packages/envd`` and ``packages/shared/pkg/proxy``
of e2b-dev/infra (August 2026), ``template/server`` of e2b-dev/code-interpreter, and the clients in
``e2b`` 2.63.0 and ``e2b-code-interpreter`` 2.11.5. It needs root on Linux: every sandbox has PID, mount
and network namespaces of its own.
"""
