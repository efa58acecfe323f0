"""What the workers' daemon promises of the processes it forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.server.test_supervisor import runs, wait_until

DAEMON = """
import os, signal, time
from tidegate.spark.daemon import end_with_parent
end_with_parent()
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
