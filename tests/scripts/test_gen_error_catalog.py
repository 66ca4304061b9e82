"""The pages in docs/errors are those of the code, and each difference is seen."""

from __future__ import annotations

import doctest
import re
import runpy
from pathlib import Path

import pytest

from sandboxio.errors import DOCS_URL, SandboxError, catalogue
from scripts import gen_error_catalog
from scripts.gen_error_catalog import FOLDER, differences, main, pages


def test_the_pages_in_the_repository_are_up_to_date() -> None:
    assert not differences(FOLDER, pages(catalogue()))


def test_each_code_has_a_page_where_its_url_points() -> None:
    codes = {error.code for error in catalogue()}
    assert len(codes) == len(catalogue()) >= 17
    assert {path.stem for path in FOLDER.glob("SBX_*.md")} == codes
    for error in catalogue():
        assert error("x").url == f"{DOCS_URL}{error.code}/"
        text = (FOLDER / f"{error.code}.md").read_text()
        assert text.startswith(f"# {error.code}: {error.__name__}\n")
        assert error.default_hint in text
        assert f"[{error.code}]({error.code}.md)" in (FOLDER / "README.md").read_text()


def test_no_markup_of_docstrings_is_left() -> None:
    for path in FOLDER.glob("*.md"):
        prose = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
        assert "``" not in prose, path
        assert not re.search(r":\w+:`", prose), path


@pytest.mark.parametrize("page", sorted(FOLDER.glob("SBX_*.md")), ids=lambda page: page.stem)
def test_the_example_of_a_page_runs_as_it_stands(page: Path) -> None:
    (example,) = re.findall(r"```pycon\n(.*?)```", page.read_text(), re.DOTALL)
    test = doctest.DocTestParser().get_doctest(example, {}, page.stem, str(page), 0)
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert main([], tmp_path) == 0
    return tmp_path


def test_written_pages_pass_the_check(folder: Path) -> None:
    assert main(["--check"], folder) == 0


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda folder: (folder / "SBX_E1204.md").unlink(), "SBX_E1204.md: missing"),
        (lambda folder: (folder / "SBX_E9999.md").touch(), "SBX_E9999.md: there is no such code"),
        (lambda folder: (folder / "SBX_E1000.md").write_text("x"), "SBX_E1000.md: out of date"),
        (lambda folder: (folder / "README.md").unlink(), "README.md: missing"),
    ],
)
def test_a_difference_fails_the_check_and_writing_repairs_it(
    folder: Path, capsys: pytest.CaptureFixture[str], spoil: object, line: str
) -> None:
    assert callable(spoil)
    spoil(folder)
    assert main(["--check"], folder) == 1
    assert line in capsys.readouterr().out
    assert main([], folder) == 0
    assert main(["--check"], folder) == 0


def test_a_new_code_needs_its_page(folder: Path) -> None:
    class Invented(SandboxError):
        """An error that nobody documented.

        >>> Invented("x").code
        'SBX_E1999'
        """

        code = "SBX_E1999"
        default_hint = "Do something."

    lines = differences(folder, pages([*catalogue(), Invented]))
    assert lines == ["SBX_E1999.md: missing", "README.md: out of date"]


def test_an_error_without_an_example_is_refused() -> None:
    class Bare(SandboxError):
        """An error without an example."""

        code = "SBX_E1998"

    with pytest.raises(SystemExit, match="Bare has no example"):
        pages([Bare])


def test_as_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gen_error_catalog", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(gen_error_catalog.__file__, run_name="__main__")
    assert ended.value.code == 0
