"""The storage of claim-check, for messages that do not fit into a topic. Pipelines write, consumers read.

It is a directory (`file:///DIR`, or a path that every worker has) or a bucket
(`s3://BUCKET/PREFIX?region=..`, `gs://`, or another of pyarrow's file systems). A message is one object with
a unique name, a UUID. An object is complete or does not exist: in a directory it is written to a temporary
file, made durable and then renamed; a bucket shows an object only when it has been received completely. The
object is durable before the message that names it is written.

Tidegate never deletes objects, because it cannot know when every reader has read them. The operator deletes
them, with a rule for their age. If a transaction is written again, the objects of its first attempt remain.
Credentials in the URI are in no message, no error and no log line.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from tidegate.config.checks import claim_uri
from tidegate.config.values import Secret, revealed
from tidegate.errors import InvalidInput, Retryable

SUFFIX: Final = ".json"
MAX_OBJECT: Final = 1 << 30
"""The largest object that is read: more bytes than any row of TiDB has, even with its text in Base64."""
URI_FORM: Final = "write file:///DIRECTORY or s3://BUCKET/PREFIX"


class ClaimStorage:
    """One storage. Picklable by its URI; not thread-safe."""

    def __init__(self, uri: str) -> None:
        """Makes no connection yet. Raises InvalidInput for an invalid URI, without quoting it."""
        self._uri = Secret(revealed(uri))
        parts = claim_uri(revealed(uri))
        self._is_local = parts.scheme in ("", "file")
        self.prefix = f"{parts.scheme or 'file'}://{_host(parts)}{parts.path}".rstrip("/")
        """The storage's name in messages: the URI without credentials and options."""
        self._root = unquote(parts.path) if self._is_local else f"{_host(parts)}{unquote(parts.path)}"
        self._root = self._root.rstrip("/")
        self._files: Any = None

    def __repr__(self) -> str:
        return f"ClaimStorage({self.prefix})"

    def __reduce__(self) -> tuple[type[ClaimStorage], tuple[str]]:
        return ClaimStorage, (self._uri,)

    def location(self) -> str:
        """A new location, as messages name it; there is no object yet."""
        return f"{self.prefix}/{uuid.uuid4()}{SUFFIX}"

    def store(self, location: str, content: bytes) -> None:
        """Store a message, durable on return. Raises Retryable while the storage fails."""
        name = location.rpartition("/")[2]
        try:
            if self._is_local:
                _write_aside(Path(self._root), name, content)
                return
            with self._opened().open_output_stream(f"{self._root}/{name}") as sink:
                sink.write(content)
        except (OSError, pa.ArrowException) as error:
            raise Retryable(
                "the storage of claim-check does not take a message",
                where=self.prefix,
                why=_reason(error),
                fix="check that it can be reached and written; the changefeed then continues by itself",
            ) from None

    def read(self, location: str) -> bytes:
        """The message at a location. Only the location's last part counts, as in TiCDC's consumers.

        Raises Retryable if it does not exist or cannot be read, because it may come back.
        """
        # The location comes from a message, and must not lead out of the storage.
        name = location.rpartition("/")[2]
        if not name or name in (".", ".."):
            raise self._unread(location, "the message names no object")
        try:
            with self._opened().open_input_file(f"{self._root}/{name}") as source:
                # Before it is read: an object that is no message could fill the memory.
                if source.size() > MAX_OBJECT:
                    raise self._unread(name, f"it has {source.size()} bytes, more than any message")
                found: bytes = source.read()
                return found
        except FileNotFoundError:
            raise self._unread(name, "it is not there") from None
        except (OSError, pa.ArrowException) as error:
            raise self._unread(name, _reason(error)) from None

    def _unread(self, name: str, why: str) -> Retryable:
        return Retryable(
            "a row in the claim-check storage cannot be read",
            where=f"{name[:200]} in {self.prefix}",
            why=why,
            fix="check that claim-check-storage-uri is the changefeed's, and that nothing deletes objects "
            "before they are read; reading continues by itself when the object is back",
        )

    def _opened(self) -> Any:
        if self._files is None:
            self._files = _files(revealed(self._uri))
        return self._files


def _host(parts: SplitResult) -> str:
    """The bucket, without a user before it."""
    return str(parts.netloc.rpartition("@")[2])


def _files(uri: str) -> Any:
    """The file system of a URI; options of S3 have TiCDC's names."""
    parts = claim_uri(uri)
    if parts.scheme in ("", "file"):
        return fs.LocalFileSystem()
    given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    try:
        if parts.scheme == "s3" and given.keys() & {"access-key", "secret-access-key", "endpoint"}:
            endpoint = urlsplit(given.get("endpoint", ""))
            return fs.S3FileSystem(
                access_key=given.get("access-key"),
                secret_key=given.get("secret-access-key"),
                session_token=given.get("session-token"),
                region=given.get("region"),
                endpoint_override=endpoint.netloc or endpoint.path or None,
                scheme=endpoint.scheme or None,
            )
        return fs.FileSystem.from_uri(uri.replace("gcs://", "gs://", 1))[0]
    except (ValueError, OSError, NotImplementedError, pa.ArrowException):
        # The original text may quote the URI, which contains credentials.
        raise InvalidInput(
            f"the storage of claim-check cannot be used: '{parts.scheme}' with these options",
            where="claim-check-storage-uri",
            fix=URI_FORM,
        ) from None


def _write_aside(directory: Path, name: str, content: bytes) -> None:
    """Write a temporary file, make it durable, then rename it; the directory is created if needed."""
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / f".{name}.tmp"
    try:
        with aside.open("wb") as sink:
            sink.write(content)
            sink.flush()
            os.fsync(sink.fileno())
        aside.rename(directory / name)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    # The name must be durable, too: a message is sent next that says where the file is.
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: Exception) -> str:
    """An error's text; for an OSError of the system only its description, which contains no path."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)[:300]
