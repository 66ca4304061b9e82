"""What every adapter would otherwise write again; the base classes for adapter authors.

An adapter supplies primitives: provision a sandbox, run one command (:class:`Execution`), move files
(:class:`FileTransfer`), destroy. The base classes do the rest, once and for all backends: argument
checks, effective timeouts, the closed state, capability refusals, kill on every way out, bounded
teardown, and one record per operation. A third party may use them or implement the Protocols itself.
"""

from ._backend import BaseBackend as BaseBackend
from ._files import BaseFileSystem as BaseFileSystem, FileTransfer as FileTransfer
from ._output import OUTPUT_LIMIT as OUTPUT_LIMIT
from ._process import (
    BaseProcess as BaseProcess,
    Execution as Execution,
    Exit as Exit,
    Owner as Owner,
    running as running,
)
from ._record import Recorder as Recorder
from ._redact import Redactor as Redactor
from ._request import SandboxRequest as SandboxRequest
from ._sandbox import BaseSandbox as BaseSandbox, capability_error as capability_error
from ._teardown import (
    bounded as bounded,
    seconds_from_environment as seconds_from_environment,
    teardown_grace as teardown_grace,
    warn_orphan as warn_orphan,
)
