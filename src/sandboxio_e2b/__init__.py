"""sandboxio on E2B.

>>> from sandboxio_e2b import E2BBackend, E2BConfig
>>> E2BBackend()
<E2BBackend e2b microvm>
"""

from __future__ import annotations

from .backend import E2BBackend as E2BBackend, E2BConfig as E2BConfig
