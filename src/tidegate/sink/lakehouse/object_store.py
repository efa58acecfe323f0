"""A prefix of a bucket in S3, or in a store with the same protocol, as a `Store`. Needs a conditional put.

    delta+s3://bucket/prefix?endpoint=https://host:port&region=eu-central-1

Credentials are never in an address. They come from the places that AWS's own tools use: `AWS_ACCESS_KEY_ID`
and `AWS_SECRET_ACCESS_KEY`, a web identity, or the metadata service of a container or a machine.

There is no lock and no rename here, and a process that was replaced may wake up and write. Every guarantee
rests on `create`, a PUT with `If-None-Match: *`: delta-rs makes each commit with it, and so do we for
definitions and the lines of the journal. `probe` refuses a store that does not honor the header.

The library retries a failed request up to ten times within three minutes; after that the error is Retryable.
It does not repeat a conditional PUT whose answer was lost, because the first one may have taken effect: one
slow commit may end the consumer. If such a PUT had taken effect, a later `create` of the key returns False,
and the caller takes the key for another process's. That is safe, and a restart finds the true state.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlsplit

import obstore
import pyarrow.fs
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from tidegate.errors import Fatal, InvalidInput, Retryable, shown
from tidegate.sink.lakehouse.store import LOG, OWN, TRASH, said

SCHEME: Final = "delta+s3"
DELETE_A_PIECE: Final = 1_000
"""Keys that one request deletes; S3 accepts no more."""
RETRIES: Final = 10
RETRY_S: Final = 180
"""Attempts for one request, and the seconds after which there is no further one. delta-rs has the same."""
NUMBERS_MAX: Final = 1_000
"""Attempts to find a free number for a line of a log; a number that is taken is another process's line."""
FORM: Final = "://bucket/prefix?endpoint=https://host:port&region=REGION"
"""The form of an address after its scheme."""
ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Environment variables with the endpoint, used if the address does not name one."""
PROBE: Final = "probe"
"""The folder within `OWN` of keys by which `probe` tests the store."""
_KNOWN: Final = ("endpoint", "region")


@dataclass(frozen=True, slots=True)
class Bucket:
    """A prefix of a bucket, and where the bucket is."""

    name: str
    prefix: str
    endpoint: str = ""
    """Empty: one of `ENDPOINTS`, otherwise AWS itself."""
    region: str = ""
    """Empty: AWS_REGION or AWS_DEFAULT_REGION, otherwise us-east-1."""

    @staticmethod
    def from_uri(text: str, scheme: str = SCHEME) -> Bucket:
        """Parse an address of this scheme and the form `FORM`; InvalidInput for anything else."""
        parts = urlsplit(text)
        asked = dict(parse_qsl(parts.query, keep_blank_values=True))
        prefix = parts.path.strip("/")
        unknown = sorted(asked.keys() - set(_KNOWN))
        why = ""
        if parts.scheme != scheme or not parts.netloc or not prefix:
            why = "a bucket and a prefix within it are needed: a target owns all below its prefix"
        elif "@" in parts.netloc or ":" in parts.netloc:
            why = "a bucket's name holds neither @ nor :, and credentials do not belong into an address"
        elif unknown:
            why = f"unknown: {', '.join(unknown)}; known: {', '.join(_KNOWN)}"
        elif set(prefix) & set('%\\[]^|{}#"<>~`') or any(p in ("", ".", "..") for p in prefix.split("/")):
            why = "the prefix holds a sign that not all tools write alike, or an empty part"
        elif "@" in asked.get("endpoint", ""):
            why = "an endpoint holds no @, and credentials do not belong into an address"
        elif not asked.get("endpoint", "https://").startswith(("http://", "https://")):
            why = "an endpoint begins with http:// or https://"
        if why:
            raise InvalidInput(
                "this address of an object store cannot be used",
                where=shown(text),
                why=why,
                fix=f"write --target '{scheme}{FORM}', and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )
        return Bucket(parts.netloc, prefix, asked.get("endpoint", ""), asked.get("region", ""))

    @property
    def options(self) -> dict[str, str]:
        """Options of the library that delta-rs and obstore share. It reads others from the environment."""
        # A commit is a PUT that fails if its key exists. All fencing relies on this.
        found = {"aws_conditional_put": "etag"}
        endpoint = self.endpoint or next(filter(None, map(os.environ.get, ENDPOINTS)), "")
        region = self.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        found["aws_region"] = region or "us-east-1"
        if endpoint:
            # Under both names: each of the two libraries prefers another one if the environment sets it.
            found |= {"aws_endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
        if endpoint.startswith("http://"):
            found["aws_allow_http"] = "true"
        return found


class ObjectStore:
    """All keys below one prefix of a bucket."""

    shared = True

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        options = bucket.options
        http = options.pop("aws_allow_http", "false") == "true"
        self._store = S3Store(
            bucket.name,
            prefix=bucket.prefix,
            config=cast(Any, options),
            client_options={"allow_http": http},
            retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
        )
        self._read_lines: dict[str, dict[str, bytes]] = {}
        """By log, the lines that were read. A line never changes, so it is read only once."""

    def __str__(self) -> str:
        return self.uri("").rstrip("/")

    @property
    def options(self) -> dict[str, str] | None:
        return self.bucket.options

    @cached_property
    def filesystem(self) -> Any:
        return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.uri(""), self.options))

    def uri(self, key: str) -> str:
        return f"s3://{self.bucket.name}/{self.bucket.prefix}/{key}"

    def file(self, key: str) -> str:
        return key

    def local(self, key: str) -> Path | None:
        return None

    # --- one object

    def get(self, key: str) -> bytes | None:
        found = self.read(key)
        return found[0] if found is not None else None

    def read(self, key: str) -> tuple[bytes, float] | None:
        with self._asking(key):
            try:
                found = obstore.get(self._store, key)
                return bytes(found.bytes()), found.meta["last_modified"].timestamp()
            except FileNotFoundError:
                return None

    def beginning(self, key: str, size: int) -> tuple[bytes, int] | None:
        """The first `size` bytes of an object that is not empty, and its whole size; None: it does not exist.

        One request, which reads a small object completely.
        """
        with self._asking(key):
            try:
                found = obstore.get(self._store, key, options={"range": (0, size)})
                return bytes(found.bytes()), found.meta["size"]
            except FileNotFoundError:
                return None

    def stamp(self, key: str) -> Hashable | None:
        with self._asking(key):
            try:
                found = obstore.head(self._store, key)
            except FileNotFoundError:
                return None
            return found["e_tag"], found["size"], found["last_modified"]

    def create(self, key: str, data: bytes) -> bool:
        with self._asking(key):
            try:
                obstore.put(self._store, key, data, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def put(self, key: str, data: bytes) -> None:
        """Write an object whose name nobody else uses. If the answer is lost, the request is repeated."""
        with self._asking(key):
            obstore.put(self._store, key, data)

    def copy(self, source: str, target: str) -> None:
        """Copy on the server. A file never changes, so copying it twice does no harm."""
        with self._asking(source):
            obstore.copy(self._store, source, target)

    # --- logs: an object for each line

    def append(self, name: str, line: bytes) -> None:
        # The listing may miss the newest lines. The conditional put decides who gets a number.
        number = max((_number_of(key) for key in self.names(name)), default=0)
        for at in range(number + 1, number + 1 + NUMBERS_MAX):
            if self.create(f"{name}/{at:020d}", line):
                return
        raise Fatal(
            "no free number was found for a line of a log",
            where=self.uri(name),
            why=f"{NUMBERS_MAX} numbers in a row were taken while this process asked for them",
            fix="end what else writes below the target's prefix",
        )

    def lines(self, name: str) -> list[bytes]:
        known = self._read_lines.setdefault(name, {})
        # Numbers of 20 digits each sort as text.
        names = sorted(self.names(name))
        for one in names:
            if one not in known:
                known[one] = self.get(f"{name}/{one}") or b""
        return [known[one] for one in names]

    # --- folders: common prefixes of keys

    def files(self, folder: str) -> dict[str, float]:
        found = self._listed(folder)["objects"]
        return {one["path"].rpartition("/")[2]: one["last_modified"].timestamp() for one in found}

    def files_below(self, table: str) -> dict[str, float]:
        listed = self._listed(table)
        found = {one["path"].rpartition("/")[2]: one["last_modified"] for one in listed["objects"]}
        for folder in listed["common_prefixes"]:
            # The log may have thousands of files: its keys are not listed.
            if folder.rpartition("/")[2] != LOG:
                with self._asking(folder):
                    pages = obstore.list(self._store, folder)
                    found |= {
                        one["path"].removeprefix(f"{table}/"): one["last_modified"]
                        for page in pages
                        for one in page
                    }
        return {name: changed.timestamp() for name, changed in found.items()}

    def names(self, folder: str, after: str = "") -> list[str]:
        if not after:
            return list(self.files(folder))
        return [
            key.rpartition("/")[2] for key in self._keys(folder, f"{folder}/{after}") if _is_in(key, folder)
        ]

    def folders(self, folder: str) -> list[str]:
        return sorted(one.rpartition("/")[2] for one in self._listed(folder)["common_prefixes"])

    def _listed(self, folder: str) -> Any:
        with self._asking(folder):
            return obstore.list_with_delimiter(self._store, folder or None)

    def has_folder(self, folder: str) -> bool:
        with self._asking(folder):
            return any(True for _ in obstore.list(self._store, folder, chunk_size=1))

    def make_folder(self, folder: str) -> None:
        """Does nothing: a folder exists while there are keys in it."""

    def check_folder(self, folder: str) -> None:
        """Does nothing: keys that differ in one byte are different keys."""

    # --- removing

    def delete(self, keys: Collection[str]) -> None:
        every = list(keys)
        for at in range(0, len(every), DELETE_A_PIECE):
            with self._asking(every[at]):
                obstore.delete(self._store, every[at : at + DELETE_A_PIECE])

    def discard(self, folder: str, check: Callable[[], object]) -> None:
        """Write a note into the trash and delete the table's log at once: without it the folder is no table.
        `emptying_trash` deletes the other files.

        A process that was replaced may be paused after its `check`. The files that it deletes later are not
        files of its successor, because no key of a discarded folder is ever used again.
        """
        keys = self._keys(f"{folder}/_delta_log")
        check()
        # Before the deletion: if the process is killed in between, the note says that the folder is
        # discarded.
        self.create(f"{TRASH}/{uuid.uuid4().hex}", folder.encode())
        self.delete(keys)

    def discarded(self) -> Collection[str]:
        return {(self.get(f"{TRASH}/{name}") or b"").decode() for name in self.names(TRASH)}

    def emptying_trash(self) -> Iterator[None]:
        for name in self.names(TRASH):
            note = f"{TRASH}/{name}"
            folder = (self.get(note) or b"").decode()
            keys = self._keys(folder) if folder else []
            for at in range(0, len(keys), DELETE_A_PIECE):
                self.delete(keys[at : at + DELETE_A_PIECE])
                yield
            # The note last: a process that is killed before leaves it for the next one.
            self.delete([note])
            yield

    def _keys(self, folder: str, after: str | None = None) -> list[str]:
        with self._asking(folder):
            pages = obstore.list(self._store, folder, offset=after)
            return [one["path"] for page in pages for one in page]

    # --- whether the store can be used

    def probe(self) -> None:
        """InvalidInput unless the store refuses the second of two conditional puts of one key."""
        key = f"{OWN}/{PROBE}/{uuid.uuid4().hex}"
        self.create(key, b"1")
        second = self.create(key, b"2")
        self.delete([key])
        if second:
            raise self._unconditional(
                "it took a second PUT of one key with If-None-Match: *, which has to be refused (412)"
            )

    def _unconditional(self, why: str) -> InvalidInput:
        return InvalidInput(
            "the object store has no conditional put",
            where=str(self),
            why=why,
            fix="use S3 itself, or a server that has it; without it two consumers could overwrite each "
            "other's commits",
        )

    @contextmanager
    def _asking(self, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:  # callers handle FileNotFoundError of a missing key themselves
            raise self.trouble(error, key) from error

    def trouble(self, error: Exception, key: str) -> Exception:
        """InvalidInput: no access, or no such bucket. Fatal: an object is missing. Otherwise Retryable."""
        why, where = said(error), self.uri(key)
        if "501 Not Implemented" in why:  # how some servers answer the header
            return self._unconditional(why)
        if "NoSuchBucket" in why:
            return InvalidInput(
                "the bucket is not there",
                where=where,
                why=why,
                fix="make the bucket; check the endpoint and the region",
            )
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or "403 Forbidden" in why:
            return InvalidInput(
                "the object store refuses access",
                where=where,
                why=why,
                fix="check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and what they may do in the bucket",
            )
        if isinstance(error, FileNotFoundError):
            return Fatal(
                "an object of the target is gone",
                where=where,
                why=why,
                fix="bring it back, for example from the bucket's versions, or start a new target",
            )
        return Retryable(
            "the object store does not answer as it should",
            where=where,
            why=why,
            fix="check the endpoint and the network; a restart resumes from the newest snapshot",
        )


def _is_in(key: str, folder: str) -> bool:
    """Whether a key is directly in a folder."""
    return key.rpartition("/")[0] == folder


def _number_of(name: str) -> int:
    return int(name) if name.isdigit() else 0
