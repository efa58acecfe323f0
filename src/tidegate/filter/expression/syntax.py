r"""Parses an expression to tokens and a syntax tree, as TiDB's parser does in its default SQL mode.

    or      xor {(OR | ||) xor}                     sum     product {(+ | -) product}
    xor     and {XOR and}                           product power {(* | / | DIV | % | MOD) power}
    and     not {(AND | &&) not}                    power   simple {^ simple}
    not     NOT not | test                          simple  (- | + | ~ | !) simple | ( or ) | literal
    test    predicate {compare predicate | IS ...}          | column | function(or, ...)
    predicate  bits [[NOT] IN | BETWEEN | LIKE | REGEXP]    | CASE [or] WHEN or THEN or ... [ELSE or] END
    bits    shift {(& | \|) shift}, & before |; shift  sum {(<< | >>) sum}

Names and keywords ignore case. `MAX_TEXT`, `MAX_NESTED` and `MAX_DEPTH` bound the text and its tree, so that
a recursive walk over the tree cannot overflow the stack.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from tidegate.errors import InvalidInput

MAX_TEXT: Final = 16_384
MAX_NESTED: Final = 20
"""The greatest depth of nested parentheses, calls and unary operators."""
MAX_DEPTH: Final = 100
"""The most levels of the tree. `a + b + c` has two levels; a chain of OR or of AND is one level."""

SUBSET: Final = "see docs/filters.md for what an expression may hold"


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant.

    kind: int, decimal, real (`text` is their digits), string, bytes (x'..'), bits (b'..'), date, time,
    timestamp (their text), null, true, false.
    """

    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Name:
    """A column, with its table and schema in front if they are written."""

    parts: tuple[str, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function with arguments. The name of a function is in lower case.

    Operators: or and (any number of arguments) xor not = <=> <> < <= > >= is_null is_true is_false in
    between like regexp | & << >> + - * / div % ^ neg ~ case.

    case: the value, or without one a null literal at -1; then pairs of WHEN and THEN; then ELSE.
    like: text, pattern, escape.
    """

    name: str
    args: tuple[Node, ...]
    at: int


Node = Literal | Name | Call


class ExpressionToken(NamedTuple):
    """kind: name, quoted, number, string, bytes, bits, symbol, end."""

    kind: str
    text: str
    at: int

    @property
    def word(self) -> str:
        """The token in upper case if it may be a keyword. Empty if it cannot be one."""
        return self.text.upper() if self.kind == "name" else ""


# The order matters: `0x1F` would otherwise be the number 0 and a name, `x'1F'` a name and a text, and `<=>`
# two operators.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
    |(?P<bytes>0x[0-9a-fA-F]+\b|[xX]'(?:[0-9a-fA-F]{2})*')
    |(?P<bits>0b[01]+\b|[bB]'[01]*')
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>[A-Za-z_$\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*)
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<symbol><=>|<<|>>|<>|!=|<=|>=|&&|\|\||[-+*/%&|^~!=<>(),.])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_RESERVED: Final = frozenset(
    {
        "AND", "BETWEEN", "BINARY", "CASE", "COLLATE", "DIV", "ELSE", "EXISTS", "FALSE", "FROM", "IN",
        "INTERVAL", "IS", "LIKE", "MOD", "NOT", "NULL", "OR", "REGEXP", "RLIKE", "SELECT", "THEN", "TRUE",
        "WHEN", "WHERE", "XOR",
    }
)  # fmt: skip
_INTRODUCERS: Final = frozenset({"_UTF8MB4", "_UTF8", "_ASCII", "_LATIN1"})
"""Introducers of character sets that are ignored. TiDB writes them into expressions of generated columns."""
_CALLABLE_RESERVED: Final = frozenset({"MOD"})


class Refusal(Exception):
    """Why an expression is refused, and the position in its text (from 0). Never leaves this package."""

    def __init__(self, why: str, at: int, *, column: str = "") -> None:
        self.why, self.at, self.column = why, at, column
        super().__init__(why)

    def as_input(self, text: str, where: str, table: str = "") -> InvalidInput:
        """The error for the user. `where`: the option; `table`: the table that the expression
        does not fit.
        """
        near = text[self.at : self.at + 40]
        shown = f": {near!r}" if near else ""
        what = f"[CDC:ErrExpressionParseFailed]a filter expression cannot be used: {text[:200]}"
        if self.column:
            what = (
                f"[CDC:ErrExpressionColumnNotFound]cannot find column '{self.column}' from table '{table}' "
                f"in a filter expression: {text[:200]}"
            )
        place = f"{where}, character {self.at + 1}{shown}"
        return InvalidInput(
            what, where=f"{place}, table {table}" if table else place, why=self.why, fix=SUBSET
        )


def parse(text: str) -> Node:
    """The syntax tree of an expression. Raises Refusal."""
    if len(text) > MAX_TEXT:
        raise Refusal(f"it has {len(text)} characters, at most {MAX_TEXT} are read", 0)
    found = _Parser(_tokens(text)).whole()
    _check_depth(found)
    return found


def _check_depth(root: Node) -> None:
    level: list[Node] = [root]
    for _ in range(MAX_DEPTH):
        level = [arg for node in level if isinstance(node, Call) for arg in node.args]
        if not level:
            return
    raise Refusal(f"more than {MAX_DEPTH} operators on top of each other", level[0].at)


def _tokens(text: str) -> list[ExpressionToken]:
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            quote = {"'": "a text", '"': "a text", "`": "a name"}.get(text[at])
            raise Refusal(f"{quote} lacks its closing {text[at]}" if quote else "unexpected character", at)
        if match.lastgroup != "space":
            tokens.append(ExpressionToken(match.lastgroup, match[0], at))
        at = match.end()
    return [*tokens, ExpressionToken("end", "", len(text))]


def unquote(text: str) -> str:
    r"""The content of a quoted text. `\%` and `\_` stay as they are, for LIKE."""
    quote = text[0]

    def plain(match: re.Match[str]) -> str:
        found = match[0]
        return quote if found == quote * 2 else _ESCAPES.get(found[1], found[1])

    return re.sub(r"\\.|" + quote * 2, plain, text[1:-1], flags=re.DOTALL)


class _Parser:
    """A recursive descent parser, with one method for each rule of the grammar above."""

    def __init__(self, tokens: list[ExpressionToken]) -> None:
        self.tokens, self.next, self.depth = tokens, 0, 0

    # --- tokens

    @property
    def token(self) -> ExpressionToken:
        return self.tokens[self.next]

    def take(self) -> ExpressionToken:
        token = self.token
        self.next += token.kind != "end"
        return token

    def takes(self, *words: str) -> ExpressionToken | None:
        """Take the next token if it is one of these symbols or keywords; otherwise None."""
        token = self.token
        if token.word in words or (token.kind == "symbol" and token.text in words):
            return self.take()
        return None

    def expect(self, word: str) -> ExpressionToken:
        token = self.takes(word)
        if token is None:
            raise self.refusal(f"{word} is missing")
        return token

    def refusal(self, why: str) -> Refusal:
        token = self.token
        found = "the end" if token.kind == "end" else repr(token.text[:30])
        return Refusal(f"{why}; found {found}", token.at)

    # --- rules

    def whole(self) -> Node:
        found = self.disjunction()
        if self.token.kind != "end":
            raise self.refusal("an operator or the end is expected")
        return found

    def left(self, rule: Callable[[], Node], operators: dict[str, str]) -> Node:
        """`rule {operator rule}`, left-associative. A chain of OR or of AND becomes one call."""
        found = rule()
        while token := self.takes(*operators):
            name, right = operators[token.text.upper()], rule()
            if name in ("or", "and") and isinstance(found, Call) and found.name == name:
                found = Call(name, (*found.args, right), found.at)
            else:
                found = Call(name, (found, right), token.at)
        return found

    def disjunction(self) -> Node:
        return self.left(self.exclusion, {"OR": "or", "||": "or"})

    def exclusion(self) -> Node:
        return self.left(self.conjunction, {"XOR": "xor"})

    def conjunction(self) -> Node:
        return self.left(self.negation, {"AND": "and", "&&": "and"})

    def negation(self) -> Node:
        if token := self.takes("NOT"):
            return self.nested(lambda: Call("not", (self.negation(),), token.at))
        return self.test()

    def test(self) -> Node:
        found = self.predicate()
        while token := self.takes("=", "<=>", "<>", "!=", "<", "<=", ">", ">=", "IS"):
            if token.text.upper() == "IS":
                found = self.truth(found, token.at)
            else:
                name = "<>" if token.text == "!=" else token.text
                found = Call(name, (found, self.predicate()), token.at)
        return found

    def truth(self, operand: Node, at: int) -> Node:
        negated = self.takes("NOT")
        token = self.takes("NULL", "UNKNOWN", "TRUE", "FALSE")
        if token is None:
            raise self.refusal("NULL, TRUE, FALSE or UNKNOWN is expected after IS")
        name = {"TRUE": "is_true", "FALSE": "is_false"}.get(token.word, "is_null")
        found = Call(name, (operand,), at)
        return Call("not", (found,), at) if negated else found

    def predicate(self) -> Node:
        found = self.bits()
        negated = self.takes("NOT")
        token = self.takes("IN", "BETWEEN", "LIKE", "REGEXP", "RLIKE")
        if token is None:
            if negated:
                raise self.refusal("IN, BETWEEN, LIKE or REGEXP is expected after NOT")
            return found
        match token.word:
            case "IN":
                self.expect("(")
                found = Call("in", (found, *self.list_of()), token.at)
            case "BETWEEN":
                low = self.bits()
                self.expect("AND")
                found = Call("between", (found, low, self.predicate()), token.at)
            case "LIKE":
                pattern = self.simple()
                escape = self.simple() if self.takes("ESCAPE") else Literal("string", "\\", token.at)
                found = Call("like", (found, pattern, escape), token.at)
            case _:
                found = Call("regexp", (found, self.simple()), token.at)
        return Call("not", (found,), token.at) if negated else found

    def bits(self) -> Node:
        return self.left(lambda: self.left(self.shift, {"&": "&"}), {"|": "|"})

    def shift(self) -> Node:
        return self.left(self.sum, {"<<": "<<", ">>": ">>"})

    def sum(self) -> Node:
        return self.left(self.product, {"+": "+", "-": "-"})

    def product(self) -> Node:
        return self.left(self.power, {"*": "*", "/": "/", "DIV": "div", "%": "%", "MOD": "%"})

    def power(self) -> Node:
        return self.left(self.simple, {"^": "^"})

    def simple(self) -> Node:
        sign = self.takes("-", "+", "~", "!")
        if sign is not None:
            return self.nested(partial(self.signed, sign))
        token = self.take()
        match token.kind:
            case "number":
                return _number(token)
            case "string":
                return self.text(token)
            case "bytes" | "bits":
                return Literal(token.kind, re.sub(r"^0[xb]|^[xXbB]'|'$", "", token.text), token.at)
            case "quoted":
                return self.name(token)
            case "name":
                return self.word(token)
            case "symbol" if token.text == "(":
                return self.nested(self.grouped)
            case _:
                # Put back, so that the refusal names this token.
                self.next -= token.kind != "end"
                raise self.refusal("a value is expected")

    def signed(self, token: ExpressionToken) -> Node:
        operand = self.simple()
        names = {"-": "neg", "~": "~", "!": "not"}
        return Call(names[token.text], (operand,), token.at) if token.text in names else operand

    def grouped(self) -> Node:
        found = self.disjunction()
        self.expect(")")
        return found

    def word(self, token: ExpressionToken) -> Node:
        word = token.word
        if word in ("NULL", "TRUE", "FALSE"):
            return Literal(word.lower(), "", token.at)
        if word == "CASE":
            return self.nested(lambda: self.case(token.at))
        # Without a text after it, the word is a function or the name of a column.
        if word in ("DATE", "TIME", "TIMESTAMP") and self.token.kind == "string":
            return Literal(word.lower(), unquote(self.take().text), token.at)
        if self.token.text == "(" and (word not in _RESERVED or word in _CALLABLE_RESERVED):
            self.take()
            return self.nested(lambda: Call(word.lower(), self.list_of(empty=True), token.at))
        if word in _RESERVED:
            raise Refusal(f"{word} is not expected here", token.at)
        if self.token.kind == "string":
            if word not in _INTRODUCERS:
                raise Refusal(f"{token.text} before a text is not in the subset", token.at)
            return self.text(self.take())
        return self.name(token)

    def text(self, token: ExpressionToken) -> Node:
        found = unquote(token.text)
        while self.token.kind == "string":
            found += unquote(self.take().text)
        return Literal("string", found, token.at)

    def name(self, token: ExpressionToken) -> Node:
        parts = [_plain_name(token)]
        while self.takes("."):
            if self.token.kind not in ("name", "quoted"):
                raise self.refusal("a name is expected after the dot")
            parts.append(_plain_name(self.take()))
        if len(parts) > 3:
            raise Refusal("a column is written column, table.column or schema.table.column", token.at)
        return Name(tuple(parts), token.at)

    def case(self, at: int) -> Node:
        none = Literal("null", "", -1)
        parts: list[Node] = [none if self.token.word == "WHEN" else self.disjunction()]
        self.expect("WHEN")
        while True:
            parts.append(self.disjunction())
            self.expect("THEN")
            parts.append(self.disjunction())
            if not self.takes("WHEN"):
                break
        parts.append(self.disjunction() if self.takes("ELSE") else none)
        self.expect("END")
        return Call("case", tuple(parts), at)

    def list_of(self, *, empty: bool = False) -> tuple[Node, ...]:
        """Arguments up to the closing parenthesis. The opening one has been taken already."""
        if empty and self.takes(")"):
            return ()
        found = [self.disjunction()]
        while self.takes(","):
            found.append(self.disjunction())
        self.expect(")")
        return tuple(found)

    def nested(self, rule: Callable[[], Node]) -> Node:
        self.depth += 1
        if self.depth > MAX_NESTED:
            raise Refusal(f"more than {MAX_NESTED} parentheses or calls within each other", self.token.at)
        found = rule()
        self.depth -= 1
        return found


def _plain_name(token: ExpressionToken) -> str:
    return token.text[1:-1].replace("``", "`") if token.kind == "quoted" else token.text


def _number(token: ExpressionToken) -> Node:
    text = token.text.lower()
    kind = "real" if "e" in text else "decimal" if "." in text else "int"
    return Literal(kind, text, token.at)
