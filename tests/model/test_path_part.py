"""Whatever people call their tables and changefeeds, the files of two never meet, on any file system."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.consumer.lakehouse.definition_files import file_stem
from tidegate.control.metadata import FeedId
from tidegate.model.path_part import PATH_PART_MAX, path_part
from tidegate.server.delivery.plan import Paths
from tidegate.sink.lakehouse.tables import table_path

NAMES = st.lists(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64)
    | st.text("aAbB=-~._ é\u0301éſKk", min_size=1, max_size=6)
    | st.sampled_from(["con", "CON", "nul.x", "com1", ".", "..", "a.", "a", "A", "=-1", "a=-1", "=41"]),
    unique=True,
    max_size=40,
)


def folded(path: str) -> str:
    """Fold a name for a disk that ignores case, Unicode form, and a dot or space at its end."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKD", path).casefold()).rstrip(". ")


@given(NAMES)
@example(["Orders", "orders", "ORDERS", "=4Frders"])
@example(["é", "e\u0301", "É", "E\u0301"])
@example(["表" * 64, "表" * 63 + "Ab", "表" * 63 + "aB", "A" * 64, "a" * 64])
def test_no_two_names_have_one_path(names: list[str]) -> None:
    parts = [path_part(name) for name in names]
    assert len({folded(part) for part in parts}) == len(names)
    for part in parts:
        assert part.isascii()
        assert 0 < len(part.encode()) <= PATH_PART_MAX
        assert part[0] not in "_."
        assert not set(part) & set('/\\%:*?"<>|')
        assert part.partition(".")[0].lower() not in ("con", "nul", "com1")
    stems = [file_stem(table_path(schema, table)) for schema in names[:6] for table in names]
    assert len({folded(stem) for stem in stems}) == len(stems)
    assert all(len(f"{stem}{0:020d}.json") <= 255 for stem in stems)


def test_lower_case_names_are_as_before_and_capitals_stay_readable() -> None:
    assert [path_part(name) for name in ("orders_2024", "a-b.c~d", "表", "a b", "_x")] == [
        "orders_2024",
        "a-b.c~d",
        "=E8=A1=A8",
        "a=20b",
        "=5Fx",
    ]
    assert [path_part(name) for name in ("Orders", "ORDERS", "orderS")] == [
        "Orders=-1",
        "ORDERS=-3f",
        "orderS=-20",
    ]


def test_folders_of_feeds_made_by_an_earlier_release_are_found(tmp_path: Path) -> None:
    for name in ("Team/Orders", "default/orders", "default/Big-One"):
        (tmp_path / "feeds" / name).mkdir(parents=True)
        (tmp_path / "feeds" / name / "bounds.json").write_text(name)
    paths = Paths(tmp_path, tmp_path / "events")
    for _ in range(2):
        paths.rename_earlier()
        for feed in (FeedId("Team", "Orders"), FeedId("default", "orders"), FeedId("default", "Big-One")):
            assert (paths.feed(feed) / "bounds.json").read_text() == f"{feed.namespace}/{feed.name}"
    assert paths.feed(FeedId("default", "orders")) == tmp_path / "feeds/default/orders"
