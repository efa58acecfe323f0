"""The promises of the workers' daemon about the processes that it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.server.test_supervisor import runs, wait_until

DAEMON = """
import os, signal, time
from tidegate.launcher import bind_forks
bind_forks(signal.SIGKILL)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(child, os.WUNTRACED)
print(child, flush=True)
time.sleep(600)
"""


def test_a_stopped_worker_ends_with_its_daemon() -> None:
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    worker = int(daemon.stdout.readline())
    try:
        assert runs(worker)
        daemon.kill()
        daemon.wait()
        wait_until(lambda: not runs(worker), "the worker's end")
    finally:
        daemon.stdout.close()
        if runs(worker):
            os.kill(worker, signal.SIGKILL)


LOADED = """
import sys, tempfile
from pathlib import Path
from numba import config
from tidegate import kernel
from tidegate.pipeline.worker import kept
from tidegate.dispatcher import kernels

def loaded():
    return any(getattr(one, "signatures", None) for one in vars(kernels).values())

complete = Path(config.CACHE_DIR)
config.CACHE_DIR = tempfile.mkdtemp()
kernel.load_compiled()
assert not loaded(), "some are not compiled, and to compile all takes a minute"
config.CACHE_DIR = str(complete)
import pyspark.daemon
from tidegate.spark import daemon
pyspark.daemon.manager = lambda: None
sys.argv = ["daemon", "pyspark.worker"]
daemon.serve(())
assert loaded() or not (complete / kernel.COMPLETE).exists()
assert "tidegate.puller.match.match_kernels" not in sys.modules, "no worker needs it"
print("ok" if loaded() else "not compiled")
"""


def test_the_daemon_loads_what_is_compiled_and_compiles_nothing() -> None:
    """Each worker would load the kernels for itself, half a second of CPU each, on its first block."""
    ran = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=300)
    assert ran.stdout == "ok\n", ran.stderr or "run `make setup`, which compiles them"
