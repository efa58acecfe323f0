"""pyiceberg's files in an object store, through the client that also writes the target's other objects.

pyiceberg has clients of its own. They read other variables of the environment, and other files, so a part of
a target could go to another server, or with other credentials. Their errors would have to be translated, too.

An object is written when its file is closed, with one PUT or one multipart upload. Until then its bytes are
in memory: a data file has at most `compaction.FILE_BYTES` of rows. Names are random and never used again, so
no PUT has a condition, and one whose answer is lost may be repeated.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from types import TracebackType
from typing import Final

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream

from tidegate.sink.lakehouse.object_store import ObjectStore

BEGINNING: Final = 256 << 10
"""Bytes of a Parquet file that its first request reads. A smaller file needs no other request."""


def root_of(store: ObjectStore) -> str:
    """How the locations of files below the prefix begin in metadata."""
    return store.uri("").rstrip("/")


class ObjectFileIO(FileIO):
    """The files below one prefix. Any thread may use it."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__()
        self._store, self._root = store, f"{root_of(store)}/"

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return _Input(location, self._store, self._key(location))

    def new_output(self, location: str) -> OutputFile:
        """A file to write, whose name nobody else uses."""
        return _Output(location, self, self._store, self._key(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Remove a file; it is no error if it does not exist."""
        self._store.delete([self._key(location if isinstance(location, str) else location.location)])

    def _key(self, location: str) -> str:
        if not location.startswith(self._root):
            raise FileNotFoundError(f"{location} is not below {self._root}")
        return location.removeprefix(self._root)


class _Input(InputFile):
    def __init__(self, location: str, store: ObjectStore, key: str) -> None:
        super().__init__(location)
        self._store, self._key = store, key

    def __len__(self) -> int:
        return self._beginning(1)[1]

    def exists(self) -> bool:
        return self._store.stamp(self._key) is not None

    def open(self, seekable: bool = True) -> InputStream:
        if not self._key.endswith(".parquet"):
            data = self._store.get(self._key)
            if data is None:
                raise FileNotFoundError(self.location)
            return pa.BufferReader(data)
        data, size = self._beginning(BEGINNING)
        if len(data) == size:
            return pa.BufferReader(data)
        # Only some columns of a large file may be read.
        return self._store.filesystem.open_input_file(self._store.file(self._key))

    def _beginning(self, size: int) -> tuple[bytes, int]:
        found = self._store.beginning(self._key, size)
        if found is None:
            raise FileNotFoundError(self.location)
        return found


class _Output(OutputFile):
    def __init__(self, location: str, files: ObjectFileIO, store: ObjectStore, key: str) -> None:
        super().__init__(location)
        self._files, self._store, self._key, self._size = files, store, key, 0

    def __len__(self) -> int:
        return self._size

    def exists(self) -> bool:
        return self._store.stamp(self._key) is not None

    def to_input_file(self) -> InputFile:
        return self._files.new_input(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        return _Upload(self._upload)

    def _upload(self, data: bytes) -> None:
        self._store.put(self._key, data)
        self._size = len(data)


class _Upload(io.BytesIO):
    """Bytes that are uploaded when they are complete."""

    def __init__(self, upload: Callable[[bytes], None]) -> None:
        super().__init__()
        self._whole = upload

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._whole(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:  # a part of a file is of no use
            super().close()

    def __del__(self) -> None:
        """Uploads nothing: BytesIO would call `close`."""
