"""Decodes the messages of a topic, with schemas and large rows that are stored outside of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from zoneinfo import ZoneInfo

from tidegate.claim_check import ClaimStorage
from tidegate.codec import registry
from tidegate.codec.base import Batch, Decoded, Decoder
from tidegate.codec.decode import decoder as decoder_of
from tidegate.codec.decoding.opening import in_pieces, opened, opening
from tidegate.codec.formats.compression import NONE, ExpandError
from tidegate.codec.large import LargeOptions
from tidegate.codec.schema_book import SchemaBook, look_up_missing
from tidegate.config.values import revealed
from tidegate.consumer.reading.claims import ClaimReader
from tidegate.consumer.reading.handle_keys import RowReader
from tidegate.consumer.reading.source import Topic
from tidegate.kvclient.pd import PdClient
from tidegate.schema_registry import HttpRegistry


class TopicDecoder:
    """A topic's decoder, with the schema registry and storage that its protocol needs, if any."""

    def __init__(self, topic: Topic) -> None:
        """Connects to nothing yet."""
        options = topic.options
        self._schemas = registry.reader_of(options).schemas
        if self._schemas is not None:
            self._book = SchemaBook()
            self._registry = HttpRegistry(revealed(topic.config.sink.schema_registry))
            options = self._schemas.placed(options, topic.uri.topic, "", self._book)
        self._options = options
        self._claims: ClaimReader | None = None
        large = registry.reader_of(options).large
        if large is None or not isinstance(options, LargeOptions):
            self._decoder: Decoder = decoder_of(options)
            return
        inner = decoder_of(replace(options, large_message_handle_compression=NONE))
        self._decoder = opening(inner, options, large)
        uri = topic.config.claim_check_storage_uri
        if uri or topic.pd:
            storage = ClaimStorage(uri) if uri else None
            upstream = RowReader(PdClient(topic.pd), ZoneInfo(topic.time_zone)) if topic.pd else None
            self._claims = ClaimReader(storage, inner, options, large, upstream)

    def pieces(self, batch: Batch) -> Iterator[Decoded]:
        """The decoded batch, with the rows in a storage, if the source URI names one.

        In the order of the messages, in pieces of bounded size: usually one. Raises Retryable while a schema
        is not known and the registry does not answer, or a row cannot be read.
        """
        if self._schemas is not None:
            look_up_missing(self._book, self._registry, self._schemas.named(batch))
        for piece in in_pieces(self._decoder, batch):
            if self._claims is None:
                yield piece
            else:
                yield from self._claims.pieces(piece)

    def opened(self, value: bytes | None) -> bytes | None:
        """A message's value, decompressed; unchanged when that fails."""
        large = registry.reader_of(self._options).large
        if value is None or large is None or not isinstance(self._options, LargeOptions):
            return value
        try:
            return opened(value, self._options.large_message_handle_compression, framed=large.framed)
        except ExpandError:
            return value
