"""Image references: read once, early, the way the engine reads them.

    reference = name [":" tag] ["@" digest]      name = [domain "/"] component ("/" component)*

Without this, two things go wrong: a pull without a tag fetches *every* tag of the repository, and the port
of a registry (``localhost:5000/a``) is taken for a tag.
Source: github.com/distribution/reference, reference.go (grammar) and normalize.go (domain rule).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sandboxio.errors import ConfigurationError

_COMPONENT: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_LABEL: Final = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")
_ID: Final = re.compile(r"(?:sha256:)?[0-9a-f]{64}")
_MAX_NAME: Final = 255

_EXAMPLE: Final = "Write it as in `docker pull`: python:3.12-slim, ghcr.io/org/image:tag, image@sha256:..."


@dataclass(frozen=True)
class Reference:
    """An image by name, with exactly one tag or digest, or by its id.

    ``domain`` is ``""`` for Docker Hub. ``str()`` is what the engine takes wherever an image may be
    given. An id (``image_id``) names an image that is there already: it cannot be pulled.
    """

    name: str = ""
    tag: str = ""
    digest: str = ""
    domain: str = ""
    image_id: str = ""

    def __str__(self) -> str:
        if self.image_id:
            return self.image_id
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    @property
    def pull_params(self) -> dict[str, str]:
        """The query of ``POST /images/create``: one tag, or the digest, which is stronger."""
        return {"fromImage": self.name, "tag": self.digest or self.tag}


def parse_reference(text: str) -> Reference:
    """Read a reference; no tag and no digest mean ``latest``. Raises :class:`ConfigurationError`.

    >>> parse_reference("localhost:5000/a/b")
    Reference(name='localhost:5000/a/b', tag='latest', digest='', domain='localhost:5000', image_id='')
    """
    if not text:
        raise ConfigurationError("The image reference is empty.", hint=_EXAMPLE)
    if _ID.fullmatch(text):
        return Reference(image_id=text)
    if "://" in text:
        raise _bad(text, "it has a scheme", "Leave the scheme out: registry/image:tag.")
    if any(c.isspace() or not c.isprintable() for c in text):
        raise _bad(text, "it contains white space or an unprintable character")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _bad(text, f"{digest!r} is not a digest", "A digest is sha256: and 64 hexadecimal digits.")
    # a colon before the last slash belongs to a registry's port
    head, colon, tag = rest.rpartition(":")
    if colon and "/" not in tag:
        rest = head
        if not _TAG.fullmatch(tag):
            raise _bad(text, f"{tag!r} is not a tag", "A tag is up to 128 letters, digits, and _ . -")
    else:
        tag = ""
    domain = _check_name(text, rest)
    if not tag and not digest:
        tag = "latest"
    return Reference(rest, tag, digest, domain)


def _check_name(text: str, name: str) -> str:
    """The registry's domain in a name, ``""`` for none; raises for an illegal name."""
    first, slash, rest = name.partition("/")
    # newer engines also take a first part with capitals for a host; older ones refuse it, and so do we
    has_domain = bool(slash) and ("." in first or ":" in first or first == "localhost")
    if has_domain and not _DOMAIN.fullmatch(first):
        raise _bad(text, f"{first!r} is not a registry's address")
    for part in (rest if has_domain else name).split("/"):
        if part != part.lower():
            raise _bad(text, f"the repository {part!r} has capital letters", "Write it in lower case.")
        if not _COMPONENT.fullmatch(part):
            raise _bad(text, f"{part!r} is not a part of a name")
    if len(name) > _MAX_NAME:
        raise _bad(text[:80] + "...", f"its name is longer than {_MAX_NAME} characters")
    return first if has_domain else ""


def _bad(text: str, why: str, fix: str = _EXAMPLE) -> ConfigurationError:
    return ConfigurationError(f"The image reference {text!r} cannot be used: {why}.", hint=fix)
