"""A capture's claim on its data folder: the lock that excludes other captures, and the use of the folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tidegate.disk import lock_file
from tidegate.errors import InvalidInput
from tidegate.server.captures.membership import NAME_FILE
from tidegate.server.delivery.plan import Paths


def lock_folder(data_dir: Path) -> int:
    """Lock the data folder; the returned descriptor holds the lock. Raises InvalidInput if another has it."""
    try:
        data_dir.mkdir(0o700, parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # another user's folder; files in it are private anyway
            data_dir.chmod(0o700)
        return lock_file(data_dir / "lock", 0o600)
    except BlockingIOError as error:
        raise InvalidInput(
            "another capture uses this data folder",
            where=str(data_dir),
            fix="stop it, or choose another --data-dir",
        ) from error
    except OSError as error:
        raise InvalidInput(
            "the data folder cannot be used",
            where=str(data_dir),
            why=error.strerror or str(error),
            fix="choose a --data-dir that can be made and written",
        ) from error


def check_mode(paths: Paths, *, shared: bool) -> None:
    """Raises InvalidInput if the folder was used with the other metadata store: its own file, or an etcd."""
    other = paths.metadata if shared else paths.data_dir / NAME_FILE
    if other.exists():
        kept = "in the folder itself" if shared else "in an etcd"
        raise InvalidInput(
            "the data folder was used in another way",
            where=str(paths.data_dir),
            why=f"its changefeeds are kept {kept}; in this way they would be missing, or run twice",
            fix="start with a new --data-dir" + ("" if shared else ", or with the --etcd it was used with"),
        )
