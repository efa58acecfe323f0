"""Wrong usage of every command ends with one clear message and the right exit code; help starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click import Context
from typer.main import get_command
from typer.testing import CliRunner

from tidegate.cli.main import app

HEAVY = (
    "asyncio",
    "confluent_kafka",
    "deltalake",
    "grpc",
    "httpx",
    "numba",
    "numpy",
    "pyarrow",
    "pyspark",
    "rich",
)
NOBODY = "127.0.0.1:1"
SOURCE = f"kafka://{NOBODY}/t?protocol=open-protocol"


def used(*words: str | Path) -> tuple[int, str]:
    """Exit code and everything printed; an exception that nobody has caught fails the test."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_help_of_every_command_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from typer.main import get_command\n"
        "from tidegate.cli.main import app\n"
        "def walk(command, words):\n"
        "    result = CliRunner().invoke(app, [*words, '--help'])\n"
        "    assert result.exit_code == 0 and result.output.startswith('Usage: '), result.output\n"
        "    for name, one in getattr(command, 'commands', {}).items():\n"
        "        walk(one, [*words, name])\n"
        "before = set(sys.modules)\n"
        "walk(get_command(app), [])\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_request_to_a_capture_imports_nothing_heavy() -> None:
    """Otherwise the imports take longer than the request, for every command that a user types."""
    others = "tidegate.cli.consumer", "tidegate.cli.server", "tidegate.cli.upstream"
    code = (
        "import sys\n"
        "from tidegate.cli.main import app\n"
        "try:\n"
        f"    app(['changefeed', 'list', '--server', {NOBODY!r}])\n"
        "finally:\n"
        f"    print(sorted({{*{HEAVY!r}, *{others!r}}} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    assert "no capture answers" in done.stderr


def test_every_argument_says_what_it_is() -> None:
    """Check every command of the tree, as it is shown: typer once lost the help of arguments."""

    def walk(command: Any, words: list[str]) -> None:
        shown = " ".join(CliRunner().invoke(app, [*words, "--help"]).output.split())
        for one in command.params:
            if one.param_type_name == "argument":
                reported = one.get_help_record(Context(command))[1].partition("  [")[0]
                assert len(reported.split()) > 1, words
                assert shown.count(reported) == 1, words
        for name, below in getattr(command, "commands", {}).items():
            walk(below, [*words, name])

    walk(get_command(app), [])
    assert "all topics of a changefeed" in used("topic", "check", "--help")[1]


def test_every_command_of_a_group_is_described_in_one_whole_line() -> None:
    """Lists of commands are 80 characters wide at most; the first line of a docstring has to fit."""
    cut = []

    def walk(command: Any, words: list[str]) -> None:
        below = getattr(command, "commands", {})
        if below:
            listed = CliRunner().invoke(app, [*words, "--help"]).output.partition("Commands:")[2]
            assert len(listed.strip().splitlines()) == len(below), words
            cut.extend(line for line in listed.splitlines() if line.endswith("..."))
        for name, one in below.items():
            walk(one, [*words, name])

    walk(get_command(app), [])
    assert not cut


@pytest.mark.parametrize("words", ["changefed", "changefeed quer", "upstream region lst"])
def test_a_mistyped_command_gets_one_suggestion(words: str) -> None:
    code, text = used(*words.split())
    assert code == 2
    assert text.count("Did you mean") == 1


def test_the_way_of_a_change_comes_first_in_the_help() -> None:
    names = [line.split()[0] for line in used("--help")[1].partition("Commands:")[2].strip().splitlines()]
    assert names[:3] == ["server", "changefeed", "capture"]
    assert names[-3:] == ["upstream", "simulate", "replay"]


@pytest.mark.parametrize("words", ["", "upstream", "changefeed", "consumer", "topic", "quarantine"])
def test_a_group_alone_shows_its_commands(words: str) -> None:
    code, text = used(*words.split())
    assert code == 2
    assert "Commands:" in text


@pytest.mark.parametrize(
    "words",
    [
        "frob",
        "upstream frob",
        "changefeed create",
        "changefeed query",
        "peek",
        "topic check",
        "consumer run",
        "compare",
        "server",
        "server --pd x --data-dir y --log-level loud",
        "server --pd x --data-dir y --spark-master spark://127.0.0.1:7077",
        "server --pd x --data-dir y --spark-master spark://127.0.0.1:7077 --worker-addr 203.0.113.1:0",
        "server --pd x --data-dir y --spark-master spark://127.0.0.1:7077 --worker-addr 0.0.0.0:0",
        "server --pd x --data-dir y --spark-master spark://127.0.0.1:7077 --worker-addr 127.0.0.1:99999",
        "server --pd x --data-dir y --spark-master mesos://127.0.0.1:7077 --worker-addr 127.0.0.1:0",
        "server --pd x --data-dir y --worker-addr 127.0.0.1:0",
        "server --pd x --data-dir y --spark-master local[0x]",
        f"consumer run --source {SOURCE} --target /tmp/x --mode both",
        f"consumer run --source {SOURCE} --target /tmp/x --until 0",
        f"peek {SOURCE} --limit 0",
        f"compare --pd {NOBODY} --target /tmp/x --limit -1",
        "upstream run --data-dir x --tso sundial",
        "changefeed create --sink-uri x --start-ts soon",
    ],
)
def test_wrong_usage_says_what_is_wrong_and_where_the_help_is(words: str) -> None:
    code, text = used(*words.split())
    assert code == 2
    assert text.startswith("Usage: ")
    assert "--help' for help." in text
    assert "Error: " in text


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        ("peek t", "the URI has no scheme", "write kafka://HOST:PORT"),
        ("peek kafka://a/t", "a topic needs a protocol", "add protocol=... to the source URI"),
        (f"peek {SOURCE} --time-zone Mars", "there is no time zone 'Mars'", "Asia/Shanghai"),
        (
            f"consumer run --source {SOURCE} --target s3://b/x",
            "this target cannot be used",
            "delta:///absolute",
        ),
        (
            f"consumer run --source {SOURCE} --target /proc/no",
            "target directory cannot be used",
            "choose a --target",
        ),
        (
            f"consumer run --source {SOURCE} --target /tmp/a%b",
            "holds a character",
            "choose another directory",
        ),
        (f"compare --pd {NOBODY} --target /no/such", "/no/such is no folder", "correct the target"),
        (f"compare --pd {NOBODY} --target /usr", "nothing was committed yet", "wait until the consumer"),
        ("consumer snapshot --target iceberg:///no/such", "/no/such is no folder", "correct the target"),
        (f"compare --pd {NOBODY} --target /no/such --at soon", "--at is not a timestamp", "or 'latest'"),
        ("changefeed create --sink-uri kafk://a/b", "there is no scheme 'kafk'", "did you mean 'kafka'?"),
        (
            "changefeed create --sink-uri kafka://a/b?protocol=open&acks=1",
            "there is no option 'acks'",
            "required-acks",
        ),
        (
            "changefeed create --sink-uri kafka://a/b?protocol=open --config /no/such.toml",
            "the changefeed configuration cannot be read",
            "",
        ),
        ("server --pd x --data-dir /tmp/x --addr 8300", "'8300' is not an address", "write HOST:PORT"),
        (
            "upstream run --data-dir /proc/no --pd 127.0.0.1:0",
            "data directory cannot be used",
            "choose a --data-dir",
        ),
    ],
)
def test_what_cannot_work_is_named_with_what_would(words: str, what: str, fix: str) -> None:
    code, text = used(*words.split())
    assert code == 2
    assert what in text
    assert fix in text
    assert "Traceback" not in text


def test_a_capture_that_is_not_there_is_named() -> None:
    code, text = used("changefeed", "list", "--server", NOBODY)
    assert code == 1
    assert "no capture answers" in text
    assert f"where: http://{NOBODY}" in text
    assert "start one with `tidegate server`" in text


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "http://", "127.0.0.1:port", "http://a..b:1"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    code, text = used("changefeed", "list", "--server", address)
    assert code == 1
    assert "no capture answers" in text
    assert address in text
