"""Image references (case 48): one tag, ports, digests; and what is refused before any request."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from sandboxio.errors import ConfigurationError
from sandboxio_docker.reference import Reference, parse_reference

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("text", "whole", "params", "domain"),
    [
        ("busybox", "busybox:latest", ("busybox", "latest"), ""),
        ("python:3.12-slim", "python:3.12-slim", ("python", "3.12-slim"), ""),
        ("library/busybox", "library/busybox:latest", ("library/busybox", "latest"), ""),
        ("docker.io/busybox", "docker.io/busybox:latest", ("docker.io/busybox", "latest"), "docker.io"),
        ("localhost/a", "localhost/a:latest", ("localhost/a", "latest"), "localhost"),
        (
            "localhost:5000/a/b",
            "localhost:5000/a/b:latest",
            ("localhost:5000/a/b", "latest"),
            "localhost:5000",
        ),
        ("localhost:5000/a/b:1", "localhost:5000/a/b:1", ("localhost:5000/a/b", "1"), "localhost:5000"),
        ("[::1]:5000/a", "[::1]:5000/a:latest", ("[::1]:5000/a", "latest"), "[::1]:5000"),
        (f"a/b@{DIGEST}", f"a/b@{DIGEST}", ("a/b", DIGEST), ""),
        (f"a/b:1@{DIGEST}", f"a/b:1@{DIGEST}", ("a/b", DIGEST), ""),
        (f"h:1/a/b:1@{DIGEST}", f"h:1/a/b:1@{DIGEST}", ("h:1/a/b", DIGEST), "h:1"),
        ("ghcr.io/a/b:v1.2_3", "ghcr.io/a/b:v1.2_3", ("ghcr.io/a/b", "v1.2_3"), "ghcr.io"),
        ("a--b/c__d/e.f_g", "a--b/c__d/e.f_g:latest", ("a--b/c__d/e.f_g", "latest"), ""),
        ("a:" + "x" * 128, "a:" + "x" * 128, ("a", "x" * 128), ""),
        ("sandboxio-test:bookworm", "sandboxio-test:bookworm", ("sandboxio-test", "bookworm"), ""),
    ],
)
def test_references(text: str, whole: str, params: tuple[str, str], domain: str) -> None:
    reference = parse_reference(text)
    assert str(reference) == whole
    assert reference.pull_params == {"fromImage": params[0], "tag": params[1]}
    assert reference.domain == domain
    assert parse_reference(str(reference)) == reference, "reads back"


@pytest.mark.parametrize("text", [HEX, DIGEST])
def test_ids(text: str) -> None:
    assert parse_reference(text) == Reference(image_id=text)
    assert str(parse_reference(text)) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("UPPER/x", "capital letters"),
        ("Python", "capital letters"),
        ("a/B", "capital letters"),
        ("HOST/A", "capital letters"),
        ("a b", "white space"),
        (" a", "white space"),
        ("a\n", "white space"),
        ("a\0", "unprintable"),
        ("a\u200b", "unprintable"),
        ("é", "not a part of a name"),
        ("docker://python", "scheme"),
        ("https://ghcr.io/a", "scheme"),
        ("a:", "not a tag"),
        ("a:.x", "not a tag"),
        ("a:-x", "not a tag"),
        ("a:" + "x" * 129, "not a tag"),
        ("a:é", "not a tag"),
        ("a:1:2", "not a part of a name"),
        ("a@", "not a digest"),
        ("a@sha256", "not a digest"),
        ("a@sha256:12", "not a digest"),
        (f"a@{DIGEST}@{DIGEST}", "not a digest"),
        (f"@{DIGEST}", "not a part of a name"),
        (":latest", "not a part of a name"),
        ("/a", "not a part of a name"),
        ("a/", "not a part of a name"),
        ("a//b", "not a part of a name"),
        ("a/../b", "not a part of a name"),
        ("-a", "not a part of a name"),
        ("a-", "not a part of a name"),
        ("a/_b", "not a part of a name"),
        ("a...b", "not a part of a name"),
        ("a___b", "not a part of a name"),
        ("h:port/a", "not a registry"),
        ("-h.x/a", "not a registry"),
        ("h:1/", "not a part of a name"),
        ("[::1/a", "not a registry"),
        ("a" * 256, "longer than 255"),
    ],
)
def test_references_that_cannot_be_used(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        parse_reference(text)
    assert caught.value.hint


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except ConfigurationError:
        return
    assert reference.image_id or reference.tag or reference.digest, "would pull all tags"
    assert parse_reference(str(reference)) == reference
    assert all(ord(character) < 128 for character in str(reference))
