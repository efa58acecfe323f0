import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.control.metadata import SELECT_VALUE, Compare, Put
from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.server.captures.data_folder import lock_folder
from tidegate.server.metadata.ownership import identity_of, take_ownership
from tidegate.server.metadata.sqlite import SqliteMetadata


def test_what_is_committed_survives_kill_and_is_seen_by_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    program = (
        "import os, sys, pathlib\n"
        "from tidegate.control.metadata import Put\n"
        "from tidegate.server.metadata.sqlite import SqliteMetadata\n"
        "store = SqliteMetadata(pathlib.Path(sys.argv[1]))\n"
        "store.transact([], [Put('/k', b'kept')])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert ended.returncode == -9
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert reader.execute(SELECT_VALUE, ("/k",)).fetchone() == (b"kept",)
    reader.close()
    found = SqliteMetadata(path).get("/k")
    assert found is not None


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"this is no database at all, and long enough to look at" * 20)
    with pytest.raises(Fatal, match=r"metadata\.db"):
        SqliteMetadata(path)
    with pytest.raises(Retryable, match="cannot be used"):
        SqliteMetadata(tmp_path / "absent" / "metadata.db")


def test_a_new_owner_has_a_higher_revision_and_shuts_the_old_one_out(tmp_path: Path) -> None:
    store = SqliteMetadata(tmp_path / "metadata.db")
    first, second = take_ownership(store, 7, "a"), take_ownership(store, 7, "b")
    assert second > first
    assert not store.transact([Compare("/tidegate/7/owner", mod_revision=first)], [Put("/x", b"")]).succeeded


def test_each_metadata_store_has_a_word_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    """Under which its feeds' history is held at PD: two captures may follow one cluster."""
    one, two = SqliteMetadata(tmp_path / "one.db"), SqliteMetadata(tmp_path / "two.db")
    word = identity_of(one, 7)
    assert word != identity_of(two, 7)
    one.close()
    assert identity_of(SqliteMetadata(tmp_path / "one.db"), 7) == word


def test_a_data_folder_belongs_to_one_capture(tmp_path: Path) -> None:
    lock_folder(tmp_path)
    with pytest.raises(InvalidInput, match="another capture"):
        lock_folder(tmp_path)
