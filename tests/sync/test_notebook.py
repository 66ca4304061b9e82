"""In a real Jupyter kernel: a cell runs inside a loop, and the stop button is a SIGINT."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

DRIVER = r'''
import json, queue, threading
from jupyter_client.manager import start_new_kernel

PRELUDE = """
import asyncio
asyncio.get_running_loop()
import sandboxio
from tests.sync.hostprocess import HostBackend
sandboxio.register("host", HostBackend)
sandbox = sandboxio.create_sync("host://")
"""
manager, client = start_new_kernel()
texts, started = [], threading.Event()

def show(message):
    content = message["content"]
    if content.get("name") == "stderr":  # Python 3.11's asyncio warns where a killed child was reaped already
        return
    texts.append(content.get("text") or content.get("ename") or "")
    if "go" in texts[-1]:
        started.set()

def interrupt():
    started.wait(20)
    manager.interrupt_kernel()

try:
    client.execute_interactive(PRELUDE, output_hook=show, timeout=30)
    client.execute_interactive("print(sandbox.run(['echo', 'x']).stdout)", output_hook=show, timeout=30)
    stopper = threading.Thread(target=interrupt)
    stopper.start()
    cell = "print('go', flush=True); sandbox.run(['sleep', '600'], timeout=900)"
    client.execute_interactive(cell, output_hook=show, timeout=30)
    stopper.join()
    client.execute_interactive("print(sandbox.run(['echo', 'y']).stdout)", output_hook=show, timeout=30)
    client.execute_interactive("sandbox.close()", output_hook=show, timeout=30)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
print(json.dumps([text.strip() for text in texts if text.strip()]))
'''


def test_cells_work_and_the_stop_button_stops(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    (tmp_path / "host").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SBX_TEST_HOST": str(tmp_path / "host"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["x", "go", "KeyboardInterrupt", "y"]
    assert not list((tmp_path / "host").iterdir())
