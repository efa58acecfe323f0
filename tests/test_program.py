"""An interpreter of our own leaves out much, but no exit code, no output and no handler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENDS = """
import atexit, sys, tempfile, threading, time
from tidegate.program import QuickEnd

class Part:
    def __del__(self):
        print("taken apart", flush=True)

def late():
    time.sleep(0.2)
    print("thread")

part, end = Part(), QuickEnd()
atexit.register(print, "handler")
folder = tempfile.TemporaryDirectory()
print(folder.name)
threading.Thread(target=late).start()
try:
    CODE
except SystemExit as wanted:
    end.with_code(wanted.code)
    raise
"""


def ended(code: str, **more: object) -> subprocess.CompletedProcess[str]:
    """A process that ends with this statement; its output waits in a buffer until then."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", ENDS.replace("CODE", code)]
    return subprocess.run(command, text=True, stderr=subprocess.PIPE, env=env, **more)  # type: ignore[call-overload]


@pytest.mark.parametrize(("code", "number"), [("sys.exit()", 0), ("sys.exit(3)", 3), ("sys.exit(256)", 0)])
def test_a_quick_end_runs_handlers_and_takes_nothing_apart(code: str, number: int) -> None:
    done = ended(code, stdout=subprocess.PIPE)
    folder, *lines = done.stdout.splitlines()
    assert (done.returncode, lines, done.stderr) == (number, ["thread", "handler"], "")
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("code", "number", "said"),
    [("sys.exit('why')", 1, "why\n"), ("raise ValueError", 1, "ValueError\n"), ("pass", 0, "")],
)
def test_any_other_end_is_left_to_the_interpreter(code: str, number: int, said: str) -> None:
    done = ended(code, stdout=subprocess.PIPE)
    assert done.returncode == number
    assert done.stderr.endswith(said)
    assert done.stdout.splitlines()[1:] == ["thread", "handler", "taken apart"]


def test_output_that_nobody_reads_is_reported_at_a_quick_end_too() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as pipe:
        done = ended("sys.exit(0)", stdout=pipe)
    assert done.returncode == 120
    assert "BrokenPipeError" in done.stderr


STARTED = """
import gc, os, sys

def main():
    print(sys.argv[1:], __name__, os.environ["OPENBLAS_NUM_THREADS"])
    print(gc.get_freeze_count() > 0, gc.get_threshold())

print(gc.get_threshold()[0])
"""


@pytest.mark.parametrize("threads", ["", "3"])
def test_a_module_is_imported_with_few_collections_and_runs_as_usual(tmp_path: Path, threads: str) -> None:
    (tmp_path / "started.py").write_text(STARTED)
    command = [sys.executable, "-m", "tidegate.program", "started", "a", "b"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    env.pop("OPENBLAS_NUM_THREADS", None)
    env |= {"OPENBLAS_NUM_THREADS": threads} if threads else {}
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, env=env, check=True)
    assert done.stdout == f"50000\n['a', 'b'] started {threads or 1}\nTrue (700, 10, 10)\n"


def test_a_process_that_imports_tidegate_keeps_its_collector() -> None:
    code = (
        "import gc, os, tidegate.cli.main, tidegate.consumer.reading.fetch_workers, tidegate.spark.daemon\n"
        "print(gc.get_freeze_count(), gc.get_threshold(), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, env=env, check=True
    )
    assert done.stdout == "0 (700, 10, 10) None\n"


PROCESSES = """
import sys
import tidegate.cli.main
import tidegate.consumer.reading.fetch_workers
import tidegate.pipeline.application
import tidegate.server.capture
import tidegate.server.pulling.puller_process
print(sorted({"pandas", "httpx", "rich", "deltalake", "typer.rich_utils"} & sys.modules.keys()))
import pyarrow
tidegate.consumer.reading.fetch_workers._leave_out_pandas()
pyarrow.array(["a"])
print("pandas" in sys.modules)
import pandas
print(pandas.DataFrame({"a": [1]}).size)
"""


def test_our_processes_import_nothing_that_few_of_them_need() -> None:
    """Each costs every start 0.2 s of CPU and more."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", PROCESSES]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True)
    assert done.stdout.splitlines() == ["[]", "False", "1"]
