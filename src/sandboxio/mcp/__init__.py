"""The sandbox as an MCP server: ``python -m sandboxio.mcp --backend docker://python:3.12-slim``.

Six tools, one sandbox for each server process, and a configuration that is fixed at the start: nothing that
a client sends can change backend, network, timeout or caps, and nothing runs on the host.
"""
