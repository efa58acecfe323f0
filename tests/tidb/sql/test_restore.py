"""DDL text as TiDB's parser restores it: recorded pairs, statements that no recording has, and any text."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines, names
from tests.tidb.sql.said import STATEMENTS
from tidegate.tidb.sql import lexer
from tidegate.tidb.sql.lexer import ParseError
from tidegate.tidb.sql.restore import outgoing, restore, split

RECORDED = [case["query"] for case in lines("ddl_restored/restored", ours=True)]
CORPUS = [*RECORDED, *STATEMENTS]
PIECES = [re.findall(r"\s+|\w+|`[^`]*`|'[^']*'|.", text, re.DOTALL) for text in CORPUS]
ODD = ["\u0660", "é", "\\", '"', "'", "`", "\0", "1e999", "9" * 400, "@@", "/*", "*/", "/*T!", "--", "x'"]
NOT_AGAIN = re.compile(r"TTL_ENABLE|CHAR_FUNC|PLACEMENT|RESOURCE GROUP", re.IGNORECASE)
"""Parts that TiDB writes differently, or leaves out, when it reads its own text again."""


@pytest.mark.golden
@pytest.mark.parametrize("name", names("ddl_restored"))
def test_statements_are_restored_as_tidb_restores_them(name: str) -> None:
    wrong = []
    for case in lines(f"ddl_restored/{name}"):
        query, charset, sql_mode = case["query"], case["charset"], case["sql_mode"]
        try:
            text = restore(query, charset=charset, sql_mode=sql_mode)
        except ParseError as error:
            text = f"not read: {error}"
        count("ddl_restored", "statements")
        if text != case["restored"]:
            wrong.append((query, text, case["restored"]))
    assert not wrong, "\n\n".join(
        f"query    {query}\nours     {text}\nrecorded {theirs}" for query, text, theirs in wrong
    )


def test_every_recorded_statement_is_one_of_ours() -> None:
    cases = list(lines("ddl_restored/restored", ours=True))
    assert len(cases) == 386
    said = [restore(case["query"], charset=case["charset"], sql_mode=case["sql_mode"]) for case in cases]
    assert said == [case["restored"] for case in cases]


@pytest.mark.parametrize("query", STATEMENTS)
def test_statements_that_no_recording_has(query: str) -> None:
    assert restore(query) == STATEMENTS[query]


@pytest.mark.parametrize("word", ["CLUSTERED", "NONCLUSTERED"])
@pytest.mark.parametrize("form", ["{}", "/*T![clustered_index] {} */"])
def test_a_clustered_key_is_said_in_a_comment_that_its_parsers_know(word: str, form: str) -> None:
    """Consumers read the text with parsers that know the word in this comment only."""
    comment = f"/*T![clustered_index] {word} */"
    said = form.format(word.lower())
    assert outgoing(f"create table t (a int primary key {said})").text == (
        f"CREATE TABLE `t` (`a` INT PRIMARY KEY {comment})"
    )
    assert outgoing(f"create table t (a int, primary key (a) {said})").text == (
        f"CREATE TABLE `t` (`a` INT,PRIMARY KEY(`a`) {comment})"
    )


def test_the_session_s_sql_mode_and_character_set_decide_what_was_said() -> None:
    query = "create table t (a int default \"1\", b char default 'x\\')"
    with pytest.raises(ParseError):
        restore(query)
    quotes = 'create table "t" ("a" int)'
    assert restore(quotes, sql_mode=lexer.ANSI_QUOTES) == "CREATE TABLE `t` (`a` INT)"
    backslash = "create table t (b char(9) default 'x\\', c int)"
    assert restore(backslash, sql_mode=lexer.NO_BACKSLASH_ESCAPES) == (
        "CREATE TABLE `t` (`b` CHAR(9) DEFAULT _UTF8MB4'x\\\\',`c` INT)"
    )
    assert restore("create table t (a real)", sql_mode=lexer.REAL_AS_FLOAT) == "CREATE TABLE `t` (`a` FLOAT)"
    assert restore("create table t (a char default 'x')", charset="gbk") == (
        "CREATE TABLE `t` (`a` CHAR DEFAULT _GBK'x')"
    )


@pytest.mark.parametrize(
    ("query", "exact", "sent"),
    [
        ("alter table t comment 'a\\\\b'", "COMMENT = 'a\\b'", "COMMENT = 'a\\\\b'"),
        ("create view v as select char(65)", "CHAR_FUNC(65", "CHAR(65"),
        ("create view v as select mod(a+1, 2) * 3", "`a`+1%2*3", "MOD(`a`+1, 2)*3"),
    ],
)
def test_a_statement_stays_the_one_that_ran(query: str, exact: str, sent: str) -> None:
    """TiDB restores these as other statements, or as none that a database can run."""
    assert exact in restore(query)
    assert sent in outgoing(query).text
    assert outgoing(query).problem == ""


@pytest.mark.parametrize(
    "query",
    [
        "",
        " -- nothing\n",
        "lock tables t read",
        "create table t (a int",
        "create table t (a frob)",
        "alter table t partition p placement policy default",
        "create table t (a int default " + "(" * 5000,
        "create view v as select " + "-(" * 5000,
    ],
)
def test_what_cannot_be_restored_goes_out_as_it_was_written(query: str) -> None:
    stated = outgoing(query)
    assert stated.text == query
    assert stated.problem


def test_a_statement_has_a_bounded_length_and_depth() -> None:
    with pytest.raises(ParseError, match="too long"):
        restore("x" * (lexer.MAX_TEXT + 1))
    with pytest.raises(ParseError):
        restore("create view v as select " + "(" * 400 + "1" + ")" * 400)
    wide = "+".join(["1"] * 20000)
    assert restore(f"create view v as select {wide}").endswith(wide)


def test_statements_of_one_query_are_separated() -> None:
    assert split("drop table a; drop table `b;c`;") == ["DROP TABLE `a`", "DROP TABLE `b;c`"]


@pytest.mark.parametrize("query", CORPUS)
def test_restored_text_is_its_own_restoration(query: str) -> None:
    text = restore(query)
    if not NOT_AGAIN.search(query) and restore(query) not in ("", "ALTER TABLE `t`"):
        assert restore(text) == text


@st.composite
def broken(draw: st.DrawFn) -> str:
    """A statement of the corpus with words taken out, put in, or taken from another one."""
    rng = random.Random(draw(st.integers(0, 2**64)))
    found = list(rng.choice(PIECES))
    for _ in range(draw(st.integers(1, 4))):
        at = rng.randrange(len(found) + 1)
        other = rng.choice(PIECES)
        start = rng.randrange(len(other))
        match rng.randrange(5):
            case 0:
                del found[at : at + rng.randint(1, 3)]
            case 1:
                found[at:at] = other[start : start + rng.randint(1, 12)]
            case 2:
                found[at : at + 1] = [rng.choice(other)]
            case 3:
                found.insert(at, rng.choice(ODD))
            case _:
                text = "".join(found)
                found = [text[: rng.randrange(len(text) + 1)]]
    return "".join(found)


@given(broken(), st.sampled_from([0, lexer.ANSI_QUOTES, lexer.PIPES_AS_CONCAT, lexer.NO_BACKSLASH_ESCAPES]))
def test_a_broken_statement_is_restored_or_refused(query: str, sql_mode: int) -> None:
    try:
        text = restore(query, sql_mode=sql_mode)
    except ParseError:
        assert outgoing(query, sql_mode=sql_mode).text == query
        return
    if text and not NOT_AGAIN.search(query) and sql_mode == 0:
        again = restore(text)
        assert again == text or text.startswith("ALTER TABLE")


SCRAPS = [*"()`'\"*/!T[]@#-;.,0x1eb \n\\_%=<>|&é\u0660", "create", "table", "case", "select", "interval"]


@given(st.lists(st.sampled_from(SCRAPS)).map("".join))
def test_any_text_is_restored_or_refused(text: str) -> None:
    outgoing(text)
    outgoing(f"create table t ({text}")
    outgoing(f"create view v as select {text}")
