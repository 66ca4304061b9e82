"""How the suite compares what is larger than a screen."""

from __future__ import annotations

from hypothesis import given, strategies as st

from sandboxio.testing.suite.comparing import difference


@given(st.binary(), st.binary())
def test_only_equal_data_have_no_difference(actual: bytes, expected: bytes) -> None:
    assert (difference(actual, expected) == "") == (actual == expected)


@given(st.text(), st.text(), st.text())
def test_the_first_difference_is_named(same: str, actual: str, expected: str) -> None:
    said = difference(f"{same}a{actual}", f"{same}b{expected}")
    assert said.startswith(f"differs from {len(same)} on ({len(same + actual) + 1} long, ")


def test_a_missing_end_is_a_difference() -> None:
    assert difference(b"12", b"123") == "differs from 2 on (2 long, 3 expected): b'12' instead of b'123'"
    assert difference(bytearray(b"123"), b"12").startswith("differs from 2 on (3 long, 2 expected)")


def test_what_is_said_stays_short() -> None:
    assert len(difference("x" * 1_000_000, "x" * 500_000 + "y" * 500_000)) < 200
