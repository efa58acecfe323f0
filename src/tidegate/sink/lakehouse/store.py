"""Where a target keeps its files: a small interface, implemented by a local disk and an object store.

    get, read       reads an object, or None
    create          writes an object if it is absent: True for exactly one of all callers on all machines
    put             writes an object whose name nobody else uses
    append, lines   a log of lines; a line is durable when `append` returns
    files, folders  lists the content of a folder
    names           lists its files without their times, for which a disk would have to read each inode
    delete          removes some files
    discard         removes a table's folder, even if the process dies during the call
    copy            makes the same bytes available under another key

A key is a path below the target's root, with `/` between its parts. Rows are in Delta tables, which delta-rs
writes itself: it needs `uri` and `options`. Readers of data files use `filesystem`.

`object_store.ObjectStore` is the other implementation. `tests/sink/test_store.py` tests both.
"""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
import uuid
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from tidegate.errors import Fatal, InvalidInput

OWN: Final = "_tidegate"
"""The folder of the consumer's own files in a target."""
LOG: Final = "_delta_log"
"""The folder of a table's log."""
SNAPSHOTS: Final = f"{OWN}/snapshots"
"""The path of the table of snapshots in a target of Delta tables."""
TRASH: Final = f"{OWN}/trash"
"""Where a table's folder is moved before its files are removed: a half-deleted folder at the table's path
would have lost its mark."""
TRASH_A_PIECE: Final = 200
"""How many files of discarded folders are removed in one step."""
_COLORS: Final = re.compile(r"\x1b\[[0-9;]*m")
_ANSWER: Final = re.compile(r"<(\?xml|error|html|!doctype)", re.IGNORECASE)
_WORDS: Final = tuple(re.compile(f"<{tag}>(.*?)</{tag}>") for tag in ("Code", "Message"))


class Store(Protocol):
    """The files below one root. Safe for threads that use different keys."""

    @property
    def shared(self) -> bool:
        """Whether processes on other machines can write here. Then no lock keeps a replaced writer out."""

    @property
    def options(self) -> dict[str, str] | None:
        """The options with which delta-rs reaches the store; None: it is a local disk."""

    @property
    def filesystem(self) -> Any:
        """A pyarrow file system for the names that `file` returns; None: the local one."""

    def uri(self, key: str) -> str:
        """The address of a folder or file, for delta-rs and for messages to people."""

    def file(self, key: str) -> str:
        """A file's name in `filesystem`."""

    def local(self, key: str) -> Path | None:
        """A file's path on this machine; None: it has none."""

    def get(self, key: str) -> bytes | None:
        """The bytes of a file; None: it does not exist."""

    def read(self, key: str) -> tuple[bytes, float] | None:
        """The bytes of a file and the time of its last change, Unix time in seconds."""

    def stamp(self, key: str) -> Hashable | None:
        """A value that changes if the file is replaced; None: it does not exist."""

    def create(self, key: str, data: bytes) -> bool:
        """Write a new file durably. False: it exists already and is left unchanged."""

    def put(self, key: str, data: bytes) -> None:
        """Write a file durably whose name nobody else uses: a random one. It may be written twice."""

    def append(self, name: str, line: bytes) -> None:
        """Add a line, given without its line feed, durably."""

    def lines(self, name: str) -> list[bytes]:
        """All lines of a log, in the order in which they were added."""

    def files(self, folder: str) -> dict[str, float]:
        """The files directly in a folder, and when each was last changed; empty if there is no folder."""

    def files_below(self, table: str) -> dict[str, float]:
        """The files of a table's folder and of its partitions' folders, without its log; as `files`, with
        their paths below the table.
        """

    def names(self, folder: str, after: str = "") -> list[str]:
        """The names of these files, in no order; only those that sort after `after`, compared as bytes."""

    def folders(self, folder: str) -> list[str]:
        """The names of the folders directly in a folder; links are left out."""

    def has_folder(self, folder: str) -> bool:
        """Whether a folder exists."""

    def make_folder(self, folder: str) -> None:
        """Create a folder, if the store has folders."""

    def check_folder(self, folder: str) -> None:
        """Fatal if the store takes the folder for one of another name."""

    def delete(self, keys: Collection[str]) -> None:
        """Remove files. It is no error if some do not exist."""

    def copy(self, source: str, target: str) -> None:
        """Make a file available under another key, too; does nothing if that key exists."""

    def discard(self, folder: str, check: Callable[[], object]) -> None:
        """Make a table's folder disappear. `check` raises if this process may no longer delete."""

    def discarded(self) -> Collection[str]:
        """Folders that were discarded but whose files are still at their old keys."""

    def emptying_trash(self) -> Iterator[None]:
        """Remove the files of discarded folders in steps, also of folders that a killed process discarded."""

    def trouble(self, error: Exception, key: str) -> Exception:
        """The error to raise for an error of a library that has used the store; may be the same error."""


class DiskStore:
    """A directory. Only one process writes to it: the one that holds the directory's lock."""

    shared = False
    options: dict[str, str] | None = None
    filesystem = None

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def __str__(self) -> str:
        return str(self.root)

    def uri(self, key: str) -> str:
        return str(self.root / key)

    def file(self, key: str) -> str:
        return str(self.root / key)

    def local(self, key: str) -> Path | None:
        return self.root / key

    def get(self, key: str) -> bytes | None:
        found = self.read(key)
        return found[0] if found is not None else None

    def read(self, key: str) -> tuple[bytes, float] | None:
        file = self.root / key
        try:
            return file.read_bytes(), file.stat().st_mtime
        except FileNotFoundError:
            return None

    def stamp(self, key: str) -> Hashable | None:
        try:
            found = (self.root / key).stat()
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def create(self, key: str, data: bytes) -> bool:
        file = self.root / key
        if file.exists():
            return False
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        # Under another name until its bytes are durable, so a crash never leaves a part of a file at `key`.
        with fresh.open("wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        return _named(fresh, file)

    def put(self, key: str, data: bytes) -> None:
        if not self.create(key, data):
            raise AssertionError("a random name was taken")

    def append(self, name: str, line: bytes) -> None:
        """Cuts off a torn last line of an earlier crash first."""
        with (self.root / name).open("ab+") as out:
            out.seek(0)
            whole = out.read()
            if whole and not whole.endswith(b"\n"):
                out.truncate(whole.rfind(b"\n") + 1)
            out.write(line + b"\n")
            out.flush()
            os.fsync(out.fileno())

    def lines(self, name: str) -> list[bytes]:
        """Leaves out a torn last line."""
        whole = self.get(name) or b""
        return [line for line in whole.split(b"\n")[:-1] if line]

    def files(self, folder: str) -> dict[str, float]:
        """Leaves out files that are deleted during the call."""
        found = {}
        for entry in self._entries(folder):
            with suppress(FileNotFoundError):
                found[entry.name] = entry.stat(follow_symlinks=False).st_mtime
        return found

    def files_below(self, table: str) -> dict[str, float]:
        found = self.files(table)
        # Not `folders`, which asks the disk about each entry: a table may have thousands of files.
        try:
            with os.scandir(self.root / table) as entries:
                folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return found
        for folder in folders:
            if folder != LOG:
                below = self.files_below(f"{table}/{folder}")
                found |= {f"{folder}/{name}": changed for name, changed in below.items()}
        return found

    def names(self, folder: str, after: str = "") -> list[str]:
        return [entry.name for entry in self._entries(folder) if entry.name > after]

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        """The entries of the files in a folder."""
        try:
            with os.scandir(self.root / folder) as entries:
                return [entry for entry in entries if not entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def folders(self, folder: str) -> list[str]:
        """Empty for a folder that we may not read: it belongs to someone else."""
        try:
            found = list((self.root / folder).iterdir())
        except OSError:
            return []
        return sorted(entry.name for entry in found if not entry.is_symlink() and entry.is_dir())

    def has_folder(self, folder: str) -> bool:
        return (self.root / folder).is_dir()

    def make_folder(self, folder: str) -> None:
        (self.root / folder).mkdir(parents=True, exist_ok=True)

    def check_folder(self, folder: str) -> None:
        """Some disks ignore case, and earlier releases created folders with capital letters."""
        at = self.root
        for part in folder.split("/"):
            wanted = at / part
            if not wanted.exists():
                return
            for entry in at.iterdir():
                if entry.name != part and _folded(entry.name) == _folded(part) and wanted.samefile(entry):
                    raise Fatal(
                        "two tables would share one folder",
                        where=f"{entry} and {wanted}",
                        why="the disk ignores case, and an earlier release named the first one as its table",
                        fix="start a new target directory: folders made by this release never collide",
                    )
            at = wanted

    def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            (self.root / key).unlink(missing_ok=True)

    def copy(self, source: str, target: str) -> None:
        """Creates a hard link, or a copy if the file system has no links."""
        # A file never changes, so one that is there has these bytes.
        if (self.root / target).exists():
            return
        (self.root / target).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(self.root / source, self.root / target)
        except OSError:
            shutil.copyfile(self.root / source, self.root / target)

    def discard(self, folder: str, check: Callable[[], object]) -> None:
        """Moves the folder to the trash. The lock of the directory keeps other writers out."""
        self.make_folder(TRASH)
        # One rename: the table is there or not, and never a part of it.
        (self.root / folder).rename(self.root / TRASH / uuid.uuid4().hex)

    def discarded(self) -> Collection[str]:
        return ()

    def emptying_trash(self) -> Iterator[None]:
        trash = self.root / TRASH
        files = (Path(folder) / name for folder, _, names in os.walk(trash) for name in names)
        while piece := list(islice(files, TRASH_A_PIECE)):
            for file in piece:
                file.unlink(missing_ok=True)
            yield
        shutil.rmtree(trash, ignore_errors=True)

    def trouble(self, error: Exception, key: str) -> Exception:
        return error


def _named(fresh: Path, file: Path) -> bool:
    """Give a file its name unless another one has it, even if another program creates it at this moment."""
    try:
        os.link(fresh, file)
    except FileExistsError:
        fresh.unlink()
        return False
    except OSError:  # the file system has no links
        fresh.replace(file)
        return True
    fresh.unlink()
    return True


def said(error: BaseException) -> str:
    """A library's error as one line, without colors. Only the code and message of a server's answer are kept.

    The full answer may hold secrets that must not be shown, for example a session's token.
    """
    text = " ".join(_COLORS.sub("", str(error)).partition("Debug source:")[0].split())
    answer = _ANSWER.search(text)
    if answer is not None:
        words = [found[1] for word in _WORDS if (found := word.search(text)) is not None]
        text = f"{text[: answer.start()].rstrip(': ')}: {', '.join(words) or 'an answer that is not shown'}"
    return text


@contextmanager
def translated(store: Store, key: str) -> Iterator[None]:
    """Translate the errors of a library that uses the store: see `Store.trouble`."""
    try:
        yield
    except OSError as error:
        trouble = store.trouble(error, key)
        if trouble is error:
            raise
        raise trouble from error


def no_snapshot(store: Store, where: str, at: int | None) -> InvalidInput:
    """The error for a target without a snapshot at or below `at`; None: without any."""
    folder = store.local("")
    if folder is not None and not folder.is_dir():
        fix = "correct the target, or wait until the consumer has committed"
        return InvalidInput("there is no such snapshot", where=where, why=f"{folder} is no folder", fix=fix)
    return InvalidInput(
        "there is no such snapshot",
        where=where,
        why="nothing was committed yet" if at is None else f"none at or below ts {at}",
        fix="wait until the consumer has committed, or ask for a later ts",
    )


def store_of(root: Path | Store) -> Store:
    """A store for a directory; a store is returned as it is."""
    return DiskStore(root) if isinstance(root, Path) else root


def create_own(store: Store, key: str, data: bytes) -> bool:
    """`Store.create`, but True as well if the key has exactly these bytes.

    The answer to a conditional put may be lost, and a second attempt then fails on our own object.
    """
    return store.create(key, data) or store.get(key) == data


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
