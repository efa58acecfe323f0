import re

import pytest
from tools.format_pages import FOLDER, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_recorded_vectors_say(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run: python -m tools.format_pages"


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in FOLDER.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (FOLDER / link).exists(), f"{page.name}: {link}"
