"""A name is imported from the module that defines it, so that a reader finds it there.

mypy refuses to import a name from a module that only imported it, unless `__all__` or an alias (`a as a`)
re-exports it.
"""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
REEXPORT = re.compile(r"^__all__\b|^(?:from .*)?import .*\b(\w+) as \1\b", re.MULTILINE)


def test_no_module_re_exports_names() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if "proto" not in path.parts]
    assert [str(path) for path in paths if REEXPORT.search(path.read_text())] == []


def test_a_re_export_is_found() -> None:
    for code in ('__all__ = ["a"]', "from b import c, a as a", "import a as a"):
        assert REEXPORT.search(f"import os\n{code}\n"), code
    assert not REEXPORT.search('from b import a as c\n"""As `__all__` does."""\n')
