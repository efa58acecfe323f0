"""Recovers the changes that the files of a span prove after a restart. The rest is pulled again.

A power loss may leave a manifest that is torn, missing, or older than what readers know, and segments that
are cut off. If the span continued from such files, readers would miss rows and not notice. So the manifest is
cut back to the ts up to which all segments are there in their full length.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Protocol

from tidegate.errors import Retryable
from tidegate.eventstore.manifest import Manifest, RegionRange, load_manifest
from tidegate.eventstore.records import Torn
from tidegate.eventstore.segment import SegmentInfo
from tidegate.model.span import Span
from tidegate.model.timestamp import Timestamp


class Publisher(Protocol):
    """The view of a store that its readers have: a part of `store.EventStore`."""

    def published(self, span_id: str) -> tuple[Timestamp, int]:
        """The resolved ts that readers know, and the version of the manifest that it belongs to."""
        ...

    def pulled_again(self, notice: Retryable) -> None:
        """Report that files of a span do not add up: it continues with the rest of them."""
        ...


def proven(store: Publisher, folder: Path, span: Span, span_id: str) -> Manifest:
    """The manifest of what the files on disk prove to be there. Reports what is pulled again, and why."""
    say = partial(_say_again, store, folder, span_id)
    empty = Manifest(span, (RegionRange(span.start, span.end, 0),))
    try:
        manifest = load_manifest(folder)
    except FileNotFoundError:
        # Without a floor no reader knows the span, so it is new and nothing is lost.
        if store.published(span_id)[0]:
            say("its manifest is not there", 0)
        return empty
    except Torn as error:
        say(f"its manifest is torn: {error.why}", 0)
        return empty
    if manifest.span != span:
        say(f"its manifest is that of {manifest.span}", 0)
        return empty
    published, version = store.published(span_id)
    reach = manifest.resolved
    # A floor of another version is about rows that this manifest may not name.
    if version == manifest.version:
        reach = max(reach, published)
    if reach < published:
        say("its manifest is older than what was published of it", reach)
    manifest = manifest.with_resolved(reach)
    bad = [s for s in manifest.segments if not _is_whole(folder, s)]
    if bad:
        # The least row of a bad segment and all that follow are pulled again.
        reach = min(reach, *(s.min_ts - 1 for s in bad))
        say(f"{len(bad)} segments are missing or cut off, the first is {bad[0].file}", reach)
        manifest = manifest.cut_back(reach)
    return manifest


def _is_whole(folder: Path, info: SegmentInfo) -> bool:
    """Whether a segment has its full length. Its bytes are checked when they are read."""
    try:
        return (folder / info.file).stat().st_size == info.bytes
    except FileNotFoundError:
        return False


def _say_again(store: Publisher, folder: Path, span_id: str, why: str, reach: Timestamp) -> None:
    store.pulled_again(
        Retryable(
            "files of the event store are inconsistent: a span is pulled again",
            where=f"{folder}, span {span_id}, complete to ts {reach}",
            why=f"{why}; the machine may have lost power",
            fix="nothing: it is pulled from TiKV again from where it is needed",
        )
    )
