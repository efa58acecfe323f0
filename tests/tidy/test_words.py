"""Texts and names use plain words, and sentences open with their subject."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from tests.tidy.words import PARTS, ROOT, allowed, refused_openings, refused_words, texts


@pytest.mark.parametrize("part", PARTS)
def test_texts_and_names_use_plain_words(part: str) -> None:
    found = [each for name, text in texts(part) for each in refused_words(name, text)]
    assert not found, "see tests/tidy/words.py; a word that is right there goes into allowed_words.txt"


@pytest.mark.parametrize("part", PARTS)
def test_sentences_open_with_their_subject(part: str) -> None:
    found = [each for name, text in texts(part) for each in refused_openings(name, text)]
    assert not found, "name the thing or the action first: `Return the rows`, not `What is returned`"


def test_the_newest_section_of_the_changelog_uses_plain_words() -> None:
    newest = "## ".join((ROOT / "CHANGELOG.md").read_text().split("\n## ")[:2])
    assert not refused_words("CHANGELOG.md", newest)


def test_refused_words_and_openings_are_found() -> None:
    text = (
        '"""Of rows."""\nx = 1  # it lies there\nself._let_go(GoesOn)\n'
        '"""Return it. What it is\nis told."""\n"What is it?"\n# bestands, Lieson\n'
    )
    assert [found.partition(": ")[2] for found in refused_words("src/a.py", text)] == [
        "lies", "let_go", "GoesOn", "told",
    ]  # fmt: skip
    assert [found.split(":")[1] for found in refused_openings("src/a.py", text)] == ["1", "4"]
    page = "## What it is\n\n| a | What is kept |\n- **Of several** one.\n| What is it? |\n"
    assert [found.split(":")[1] for found in refused_openings("page.md", page)] == ["3", "4"]


def test_each_exception_is_needed() -> None:
    read = [one for part in PARTS for one in texts(part)]
    unused = [
        f"{files} | {phrase}"
        for files, phrase in allowed()
        if not any(fnmatchcase(name, files) and phrase in text for name, text in read)
    ]
    assert not unused, "remove it from tests/tidy/allowed_words.txt"


def test_a_phrase_is_allowed_in_its_files_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    phrases = (("src/*", "lies in the future"), ("*", "stands for"))
    monkeypatch.setattr("tests.tidy.words.allowed", lambda: phrases)
    text = "start-ts 5 lies in the future"
    assert not refused_words("src/tidegate/server/changefeeds/creation.py", text)
    assert refused_words("docs/trouble.md", text)
    assert not refused_words("page.md", "a number that stands for a text")
