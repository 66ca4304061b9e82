from __future__ import annotations

from tests.e2b_standin.fixtures import standin as standin, standin_process as standin_process
