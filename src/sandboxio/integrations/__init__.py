"""sandboxio inside agent frameworks: each module returns the framework's own tool objects.

No module here weakens a default: network, caps and timeouts are those of the sandbox that you hand over.
Each needs its framework, which its extra installs, and none is imported before you ask for it.
"""
