"""Sink URIs: `kafka://host:port[,host:port]/topic?option=value&...`, parsed and checked.

A reader's URI is `reader:?rows=typed&hold=SECONDS&max-kept=BYTES`. Only the server makes it, never a user.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tidegate.config.settings import KafkaConfig, LargeMessageConfig
from tidegate.config.ticdc import URI_TO_COME, URI_TUNING
from tidegate.config.values import Secret, nearest, revealed
from tidegate.errors import InvalidInput

SCHEMES: Final = ("kafka", "kafka+ssl")
READER: Final = "reader"
READER_OPTIONS: Final = ("rows", "hold", "max-kept")
ROWS: Final = ("typed", "generic")
SCHEMES_TO_COME: Final = frozenset(
    [
        "mysql",
        "mysql+ssl",
        "tidb",
        "tidb+ssl",
        "s3",
        "gcs",
        "gs",
        "azure",
        "azblob",
        "file",
        "nfs",
        "pulsar",
        "pulsar+ssl",
        "tikv",
        "delta",
        "blackhole",
    ]
)


URI_FORM: Final = "write kafka://HOST:PORT[,HOST:PORT]/TOPIC?protocol=open-protocol"
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(dotted.split("."))


_KAFKA: Final = ("sink", "kafka_config")
URI_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "protocol": ("sink", "protocol"),
        "only-output-updated-columns": ("sink", "only_output_updated_columns"),
        "content-compatible": ("sink", "content_compatible"),
        "debezium-disable-schema": ("sink", "debezium_disable_schema"),
        "debezium-include-start-ts": _path("sink.debezium.include_start_ts"),
        "schema-registry": ("sink", "schema_registry"),
        "avro-enable-watermark": (*_KAFKA, "codec_config", "avro_enable_watermark"),
        "avro-decimal-handling-mode": (*_KAFKA, "codec_config", "avro_decimal_handling_mode"),
        "avro-bigint-unsigned-handling-mode": (*_KAFKA, "codec_config", "avro_bigint_unsigned_handling_mode"),
        "avro-include-before-value": (*_KAFKA, "codec_config", "avro_include_before_value"),
        "output-row-key": (*_KAFKA, "codec_config", "output_row_key"),
        "enable-tidb-extension": (*_KAFKA, "codec_config", "enable_tidb_extension"),
        "max-batch-size": (*_KAFKA, "codec_config", "max_batch_size"),
        "encoding-format": (*_KAFKA, "codec_config", "encoding_format"),
    }
    | {
        f.name.replace("_", "-"): (*_KAFKA, f.name)
        for f in dataclasses.fields(KafkaConfig)
        if f.name not in ("codec_config", "output_raw_change_event", "large_message_handle")
    }
    | {
        f.name.replace("_", "-"): (*_KAFKA, "large_message_handle", f.name)
        for f in dataclasses.fields(LargeMessageConfig)
    }
)
"""The setting for each parameter of a Kafka URI."""


SECRET_OPTIONS: Final = frozenset(
    {"sasl-password", "sasl-gssapi-password", "schema-registry", "claim-check-storage-uri"}
)


@dataclass(frozen=True, slots=True)
class SinkUri:
    """A parsed sink URI: `kafka://host:port[,host:port]/topic?option=value&...`."""

    scheme: str
    hosts: tuple[str, ...]
    """Each is `host:port`."""
    topic: str
    options: tuple[tuple[str, str], ...]
    """As given, in order, checked against `URI_OPTIONS`; secret ones are of type Secret."""

    @property
    def is_reader(self) -> bool:
        """Whether a Spark query reads the changes from the capture itself."""
        return self.scheme == READER

    @property
    def bootstrap(self) -> str:
        """The brokers in the form that Kafka clients take."""
        return ",".join(self.hosts)

    def option(self, name: str, default: str = "") -> str:
        """The value of an option; the last one if it is given twice."""
        return dict(self.options).get(name, default)

    def render(self, *, redact: bool = True) -> str:
        """The URI as text; by default secrets are hidden."""
        pairs = ((k, str(v) if redact else revealed(v)) for k, v in self.options)
        query = "&".join(f"{k}={quote(v, safe='')}" for k, v in pairs)
        if self.is_reader:
            return f"{READER}:?{query}"
        return f"{self.scheme}://{self.bootstrap}/{quote(self.topic, safe='')}" + (
            f"?{query}" if query else ""
        )

    def __str__(self) -> str:
        return self.render()


def parse_sink_uri(uri: str) -> SinkUri:
    """Parse and check a sink URI; raises InvalidInput, which never quotes the URI."""
    if uri.strip().lower().startswith(f"{READER}:"):
        return _parse_reader(uri.strip())
    found = _parse(uri)
    _check_topics([found.topic])
    return found


def reader_uri(rows: str, hold_s: int, max_kept: int) -> SinkUri:
    """The URI of a reader. `rows`: typed or generic; `hold_s`: how long changes are kept while its query is
    silent; `max_kept`: how many bytes of them at most. Raises InvalidInput.
    """
    return _parse_reader(f"{READER}:?rows={quote(rows, safe='')}&hold={hold_s}&max-kept={max_kept}")


def _parse_reader(uri: str) -> SinkUri:
    given = parse_qsl(uri.partition("?")[2], keep_blank_values=True)
    names = tuple(name for name, _ in given)
    if names != READER_OPTIONS:
        raise InvalidInput(
            "a reader's URI is made by the server alone",
            where="sink URI",
            fix='use spark.readStream.format("tidegate"), which makes a reader; for a topic, ' + URI_FORM,
        )
    rows, *numbers = (value for _, value in given)
    if rows not in ROWS:
        raise InvalidInput(f"'{rows[:40]}' is not a kind of rows", where="rows", fix=nearest(rows, ROWS))
    for name, text in zip(READER_OPTIONS[1:], numbers, strict=True):
        if not text.isdigit() or not 0 < int(text) < 1 << 62:
            raise InvalidInput(
                f"'{text[:40]}' is not a positive number",
                where=name,
                fix="give hold in seconds, max-kept in bytes",
            )
    return SinkUri(READER, (), "", tuple(given))


def parse_source_uri(uri: str) -> tuple[SinkUri, tuple[str, ...]]:
    """Parse the URI of a source: one topic or several, separated by commas. Returns also all topics, sorted.

    The returned URI has the first topic that is named.
    """
    found = _parse(uri)
    topics = found.topic.split(",")
    _check_topics(topics)
    if len(set(topics)) < len(topics):
        raise InvalidInput(
            "a topic is named twice", where="sink URI", why=found.topic[:300], fix="name each topic once"
        )
    # Sorted, so that the numbers of partitions do not depend on the order in which a user names the topics.
    return dataclasses.replace(found, topic=topics[0]), tuple(sorted(topics))


def _check_topics(topics: Iterable[str]) -> None:
    for topic in topics:
        if not TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
            raise InvalidInput(
                f"'{topic[:300]}' is not a Kafka topic name",
                where="sink URI",
                fix=f"{URI_FORM}; a topic has 1 to 249 of A-Z a-z 0-9 . _ -",
            )


def _parse(uri: str) -> SinkUri:
    """Check everything except the topic, which is the whole path."""
    try:
        parts = urlsplit(uri.strip())
    except ValueError as error:  # invalid brackets; the text of the error does not quote the URI
        raise InvalidInput("the sink URI cannot be read", why=str(error), fix=URI_FORM) from None
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES:
        _refuse_scheme(scheme)
    # Refused and not ignored: a password in that place would be shown, because only options are known as
    # secrets.
    if "@" in parts.netloc:
        raise InvalidInput(
            "a Kafka URI holds no user before the host",
            where="sink URI",
            fix="give sasl-user, sasl-password and sasl-mechanism as parameters",
        )
    hosts = tuple(_host(h) for h in parts.netloc.split(",")) if parts.netloc else ()
    topic = unquote(parts.path).strip("/")
    if not hosts:
        raise InvalidInput("the URI names no broker", where="sink URI", fix=URI_FORM)
    given = parse_qsl(parts.query, keep_blank_values=True)
    # From here on printing the URI, in whatever way, shows no secret.
    options = tuple((k, Secret(v) if k in SECRET_OPTIONS else v) for k, v in given)
    for name, _ in options:
        _check_uri_option(name)
    return SinkUri(scheme, hosts, topic, options)


def _refuse_scheme(scheme: str) -> None:
    if not scheme:
        raise InvalidInput("the URI has no scheme", where="sink URI", fix=URI_FORM)
    known = scheme in SCHEMES_TO_COME
    raise InvalidInput(
        f"scheme '{scheme}' is not supported yet" if known else f"there is no scheme '{scheme}'",
        where="sink URI",
        fix=nearest(scheme, SCHEMES, label="supported"),
    )


def _host(text: str) -> str:
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        host, port = text.strip(), "9092"
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidInput(
            f"'{text}' is not a broker address",
            where="sink URI",
            fix="write HOST:PORT, port 1 to 65535",
        )
    return f"{host}:{port}"


def _check_uri_option(name: str) -> None:
    if name in URI_OPTIONS or name in URI_TUNING:
        return
    if name in URI_TO_COME:
        raise InvalidInput(
            f"option '{name}' is TiCDC's and not supported here yet",
            where="sink URI",
            fix="leave it out",
        )
    raise InvalidInput(
        f"there is no option '{name}'",
        where="sink URI",
        fix=nearest(name, URI_OPTIONS, label="options"),
    )
