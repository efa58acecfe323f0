"""Words and openings of sentences that hide what happens, and how texts are searched for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from tests.test_tidy import tracked

ROOT = Path(__file__).parents[2]
WORDS = re.compile(
    r"(?<![A-Za-z])(?:told|hears?|heard|lies|anew|mend(?:s|ed|ing)?|beside|whoever|lest|stands|stood"
    r"|so[ _]long|want[ _]of|(?:go|goes|going|went)[ _]?on|stand[ _]still|lets?[ _]?go|what[ _]shall[ _]be"
    r")(?![A-Za-z])",
    re.IGNORECASE,
)
"""Plainer ones are: sent, reported, received, is, again, repair, next to, continue, wait, hang, release.

A name may hold them too: `let_go`, `GoesOn`."""
OPENINGS = re.compile(
    r'(?:^[ \t]*|[.!:] |"""|# |- |\| |\*\*|")(?P<opening>(?:Of|What) )(?![^.!?"]*\?)', re.MULTILINE
)
"""A sentence that opens so hides its subject. A question may."""
HEADING = re.compile(r"^##+ .*$", re.MULTILINE)
"""Also in the tools that write pages."""
ALLOWED_FILE = Path(__file__).with_name("allowed_words.txt")
PARTS = ("src", "tests", "benchmarks", "tools", "examples", "docs", "proto", "")
"""The folders, and "" for everything else."""
TEXTS = (".py", ".md", ".txt", ".c", ".go", ".toml", ".ini", ".json", ".proto", "")
SKIPPED = (
    "tests/golden/*",  # recorded from TiDB and TiCDC
    "*/proto/*",  # generated
    "LICENSE",
    "CHANGELOG.md",  # its newest section alone; the others are history
    "tests/tidy/*",  # the words themselves
    "tests/interop/go.*",  # checksums
)


@cache
def allowed() -> tuple[tuple[str, str], ...]:
    """(files, phrase) for each line of `allowed_words.txt`."""
    lines = [line.partition("#")[0].strip() for line in ALLOWED_FILE.read_text().splitlines()]
    pairs = [line.split("|", 1) for line in lines if line]
    return tuple((files.strip(), phrase.strip()) for files, phrase in pairs)


def texts(part: str) -> Iterator[tuple[str, str]]:
    """(name, contents) of each file that people read. `part`: one of PARTS."""
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        folder = name.partition("/")[0]
        wanted = (folder if folder in PARTS else "") == part and path.suffix in TEXTS
        if wanted and not any(fnmatchcase(name, skipped) for skipped in SKIPPED) and path.is_file():
            yield name, path.read_text(errors="replace")


def without_allowed(name: str, text: str) -> str:
    for files, phrase in allowed():
        if fnmatchcase(name, files):
            text = re.sub(rf"(?<![A-Za-z]){re.escape(phrase)}(?![A-Za-z])", lambda at: "_" * len(at[0]), text)
    return text


def refused_words(name: str, text: str) -> list[str]:
    """`name:line: word` for each refused word in a file."""
    if not WORDS.search(text):
        return []
    rest = without_allowed(name, text)
    return [f"{name}:{rest.count(chr(10), 0, at.start()) + 1}: {at[0]}" for at in WORDS.finditer(rest)]


def refused_openings(name: str, text: str) -> list[str]:
    """`name:line: opening` for each sentence that opens with a refused word. Headings may."""
    if "Of " not in text and "What " not in text:
        return []
    rest = without_allowed(name, text)
    rest = HEADING.sub("", re.sub("^# .*", "", rest) if name.endswith(".md") else rest)
    return [
        f"{name}:{rest.count(chr(10), 0, at.start('opening')) + 1}: {at['opening']}"
        for at in OPENINGS.finditer(rest)
    ]
