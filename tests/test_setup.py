"""`tools/setup` on a bare machine: real pip, and a wheel of our own in the place of uv's."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
UV = """#!/bin/sh
# Notes what it is asked, and makes an environment whose python does nothing.
if [ "$1" = --version ]; then echo "uv {version}"; exit; fi
echo "$0 $*" >> asked
if [ "$1" != venv ]; then exit; fi
mkdir -p .venv/bin
printf '#!/bin/sh\\n' > .venv/bin/python
chmod +x .venv/bin/python
"""


def wheel(folder: Path) -> str:
    """A wheel of uv 9.9.9 in `folder`; its digest."""
    files = {
        "uv-9.9.9.data/scripts/uv": UV.format(version="9.9.9"),
        "uv-9.9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: uv\nVersion: 9.9.9\n",
        "uv-9.9.9.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{_record_hash(text)},{len(text)}\n" for name, text in files.items())
    path = folder / "uv-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o100755 << 16
            packed.writestr(info, text)
        packed.writestr("uv-9.9.9.dist-info/RECORD", record + "uv-9.9.9.dist-info/RECORD,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _record_hash(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


class Tree:
    """A tree with `tools/setup` and lock files, on a machine whose PATH may hold another uv."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wheels, self.bin = folder / "tree", folder / "wheels", folder / "bin"
        for each in (self.folder / "tools", self.folder / "src", self.wheels, self.bin):
            each.mkdir(parents=True)
        shutil.copy(ROOT / "tools/setup", self.folder / "tools/setup")
        for name in ("requirements-jdk.lock", "pyproject.toml"):
            (self.folder / name).write_text("")
        self.digest = wheel(self.wheels)

    def lock(self, digest: str) -> None:
        lines = ["# made by uv", "urllib3==2.0.0 \\", "    --hash=sha256:00", "    # via uv", "uv==9.9.9 \\"]
        lines += [
            "    --hash=sha256:" + "0" * 64 + " \\",
            f"    --hash=sha256:{digest}",
            "    # via tidegate",
        ]
        lines += ["uvicorn==0.1 \\", "    --hash=sha256:00", ""]
        (self.folder / "requirements.lock").write_text("\n".join(lines))

    def installed(self, version: str) -> None:
        (self.bin / "uv").write_text(UV.format(version=version))
        (self.bin / "uv").chmod(0o755)

    def setup(self) -> subprocess.CompletedProcess[str]:
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}
        environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "PYTHON": sys.executable,
            "HOME": os.environ["HOME"],
            **pip,
        }
        return subprocess.run([self.folder / "tools/setup"], env=environment, capture_output=True, text=True)

    def asked(self) -> set[str]:
        return {line.split()[0] for line in (self.folder / "asked").read_text().splitlines()}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.slow
def test_an_unpinned_uv_fails_clearly_and_the_pinned_uv_is_used(tree: Tree) -> None:
    tree.installed("9.9.8")
    tree.lock("1" * 64)
    wrong = tree.setup()
    assert wrong.returncode == 1
    assert "uv 9.9.9 could not be installed with the hashes in requirements.lock" in wrong.stderr
    assert "DO NOT MATCH THE HASHES" in wrong.stderr
    assert not (tree.folder / ".venv").exists()
    assert not (tree.folder / ".cache/uv").exists()
    tree.lock(tree.digest)
    right = tree.setup()
    assert right.returncode == 0, right.stderr
    assert tree.asked() == {".cache/uv/bin/uv"}, "and not the other release on the PATH"
    (tree.folder / "asked").unlink()
    assert tree.setup().returncode == 0
    assert not (tree.folder / "asked").exists(), "everything is as the lock files say"


def test_an_installed_uv_of_the_pinned_release_is_used(tree: Tree) -> None:
    tree.installed("9.9.9")
    tree.lock("1" * 64)
    done = tree.setup()
    assert done.returncode == 0, done.stderr
    assert tree.asked() == {"uv"} or tree.asked() == {str(tree.bin / "uv")}


def test_the_lock_file_pins_uv() -> None:
    """The lines that `tools/setup` gives to pip."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("uv==")]
    assert lines[at + 1].strip().startswith("--hash=sha256:")
