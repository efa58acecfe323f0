"""A manifest as it was written, however it was: all of it, or what has changed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import Fatal
from tidegate.eventstore import manifest as module
from tidegate.eventstore import records
from tidegate.eventstore.manifest import Manifest, ManifestFile, ManifestReader, RegionRange, load_manifest
from tidegate.eventstore.segment import BlockInfo, SegmentInfo
from tidegate.model.span import Span

SPAN = Span(b"a", b"z")
TS = st.integers(0, 90)


@st.composite
def segments(draw: st.DrawFn) -> SegmentInfo:
    low = draw(TS)
    block = BlockInfo(8, 5, 99, low, low + 3)
    valid_to = draw(st.none() | st.just(low + 1))
    return SegmentInfo(f"{draw(st.integers(0, 20)):012d}.arrow", 5, 200, low, low + 3, valid_to, 64, (block,))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    cuts = [b"a", *sorted(draw(st.sets(st.sampled_from([b"c", b"k", b"r"])))), b"z"]
    ranges = [RegionRange(low, high, draw(TS)) for low, high in pairwise(cuts)]
    found = tuple(draw(st.lists(segments(), max_size=6)))
    return Manifest(SPAN, tuple(ranges), found, draw(TS), draw(TS))


@st.composite
def following(draw: st.DrawFn, before: Manifest) -> Manifest:
    """Draw the next manifest, as a store makes it or as no store would."""
    kept = before.segments
    match draw(st.integers(0, 4)):
        case 0:
            return draw(manifests())
        case 1:
            return before.with_resolved(draw(TS))
        case 2:
            return replace(before, segments=(*kept, draw(segments())), next_file=before.next_file + 1)
        case 3:
            return replace(before, segments=kept[draw(st.integers(0, 6)) :], dropped_to=draw(TS))
        case _:
            low = draw(st.integers(0, 6))
            high = draw(st.integers(low, 6))
            return replace(before, segments=(*kept[:low], draw(segments()), *kept[high:])).with_resolved(50)


@settings(max_examples=200, deadline=None)
@given(manifests(), st.data())
def test_a_manifest_reads_as_written_with_and_without_a_remembered_state(
    tmp_path_factory: pytest.TempPathFactory, first: Manifest, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("span")
    reader, file = ManifestReader(folder), ManifestFile(folder)
    current = first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "TAIL_MIN", data.draw(st.sampled_from([0, 1 << 20])))
        for _ in range(data.draw(st.integers(1, 10))):
            version = file.write(current)
            if data.draw(st.booleans()):
                found = reader.read()
                assert (found, found.version, found.torn) == (current, version, False)
                assert reader.read() is found
            assert (load_manifest(folder), load_manifest(folder).version) == (current, version)
            current = data.draw(following(current))


def test_a_format_of_a_later_version_is_refused(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("span")
    with monkeypatch.context() as patch:
        patch.setattr(module, "FORMAT", 3)
        ManifestFile(folder).write(Manifest(SPAN, (RegionRange(b"a", b"z", 5),)))
    with pytest.raises(Fatal, match="a format this version does not know") as caught:
        load_manifest(folder)
    assert "format 3, known is 2" in caught.value.why
