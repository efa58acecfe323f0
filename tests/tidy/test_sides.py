"""An owner knows a processor by messages only, and opens no file of one.

docs/architecture.md#owner-and-processor. That neither side imports the other is in `.importlinter`.
"""

from __future__ import annotations

import re
from pathlib import Path

SERVER = Path(__file__).parents[2] / "src/tidegate/server"
FILES = re.compile(
    r"\b(?:read_text|read_bytes|write_text|write_bytes|unlink|rmtree|mkdir|glob|BoundsFile|Bounds|FeedSpec)\b"
    r"|\.paths\.feed\(|\.folder\b|(?<![\w.])open\("
)
ALLOWED = {
    "changefeeds/creation.py": {".paths.feed(", "mkdir"},  # the folder of a reader: its downstream
    "changefeeds/readers.py": {".folder"},  # likewise
}


def code_of(text: str) -> str:
    """Without comments and definitions of functions."""
    return re.sub(r"#.*|def \w+\(", "", text)


def test_an_owner_opens_no_file_of_a_processor() -> None:
    found = {
        str(path.relative_to(SERVER)): names
        for room in ("owner", "changefeeds")
        for path in sorted((SERVER / room).glob("*.py"))
        if (names := set(FILES.findall(code_of(path.read_text()))))
    }
    assert found == ALLOWED, "let the processor do it (`server.processor`), or report it in a message"


def test_a_file_of_a_processor_is_found() -> None:
    for code in (
        "shutil.rmtree(a)",
        "node.paths.feed(feed)",
        "open(path)",
        "FeedSpec.load(a)",
        "plan.folder",
    ):
        assert FILES.search(code_of(code)), code
    for code in ("await self.ddl.open(view)", "def open(self)", "reopen(a)", "folder = 1"):
        assert not FILES.search(code_of(code)), code
