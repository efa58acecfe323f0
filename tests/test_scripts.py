"""The runner of scripts: `tests/scripts.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts import Command, run_script, scripts

SCRIPT = """\
# It adds.
add 1 2
add 3 by=10
  a body
----
3
30 a body

quiet
----
ok
"""


def run(command: Command) -> str:
    if command.name == "quiet":
        return ""
    if command.name == "break":
        raise RuntimeError("broken")
    total = sum(map(int, command.words)) * command.number("by", 1)
    return " ".join([str(total), *command.body])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "adds.txt"
    path.write_text(SCRIPT)
    return path


def test_a_script_that_says_what_is_printed_passes(path: Path) -> None:
    run_script(path, run, rewrite=False)
    assert path.read_text() == SCRIPT
    (case,) = scripts(path.parent)
    assert "id='adds'" in repr(case)


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [("\n3\n", "\n4\n", "-4"), ("30 a body\n", "", "+30 a body"), ("\nok\n", "\nok\nmore\n", "-more")],
)
def test_another_output_fails_with_a_diff(path: Path, old: str, new: str, shown: str) -> None:
    path.write_text(SCRIPT.replace(old, new))
    with pytest.raises(pytest.fail.Exception, match="now") as failure:
        run_script(path, run, rewrite=False)
    assert shown in str(failure.value).splitlines()


def test_rewrite_writes_what_is_printed(path: Path) -> None:
    path.write_text(SCRIPT.replace("\n3\n30 a body\n", "\n7\n").removesuffix("----\nok\n"))
    # The last commands have no output yet, as when somebody has just written them.
    path.write_text(path.read_text() + "----\n")
    run_script(path, run, rewrite=True)
    assert path.read_text() == SCRIPT


@pytest.mark.parametrize("text", ["----\nok\n", "  a body\n"])
def test_output_and_body_need_a_command(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(ValueError, match=r"adds\.txt:1"):
        run_script(path, run, rewrite=False)


def test_commands_at_the_end_without_output_fail(path: Path) -> None:
    path.write_text(SCRIPT + "\nadd 1\n")
    with pytest.raises(pytest.fail.Exception):
        run_script(path, run, rewrite=False)


def test_an_error_says_in_which_line(path: Path) -> None:
    path.write_text(SCRIPT + "\nbreak\n----\nok\n")
    with pytest.raises(RuntimeError, match="broken") as failure:
        run_script(path, run, rewrite=False)
    assert failure.value.__notes__ == ["in adds.txt:13: break"]


def test_a_folder_without_scripts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no script"):
        scripts(tmp_path)
