"""`make demo`: the main path, live, and the proof at the end.

It starts an embedded TiKV with a bank workload, a Kafka broker, a capture with its Spark pipeline and the Spark
consumer. It shows them at work, stops the workload, waits until everything is delivered, and compares source and
target at one timestamp.
The target is Delta tables, or with `make demo TARGET=mariadb` a MariaDB. With `make demo CAPTURES=3` three
captures share the tables: the owner is killed, then another one is drained, and the remaining capture ends the run. A
second table says how long the checkpoint paused each time, and who delivered how many ranges before and after.
Ctrl-C ends every process at any moment. All files are under build/demo.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from tools.demo.faults import plan
from tools.demo.path import MainPath
from tools.demo.targets import target_of
from tools.demo.view import Board, closing_table, faults_table, write_page
from tools.processes import ChildError

from tidegate.errors import TidegateError

ROOT = Path(__file__).parents[2]
DRAIN_S = 60


def main() -> int:
    """Run the demo. Returns 0 if source and target are equal."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long the workload runs once all is live"
    )
    parser.add_argument("--rate", type=float, default=600, help="row changes a second of the workload")
    parser.add_argument("--target", default="delta", help="where the rows go: delta or mariadb")
    parser.add_argument(
        "--captures", type=int, default=1, help="with several, one is killed and one is drained meanwhile"
    )
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "demo", help="where everything goes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C
    options.dir = options.dir.absolute()
    try:
        target = target_of(options.target, options.dir)
        target.prepare()
    except TidegateError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except subprocess.CalledProcessError as error:
        return error.returncode
    except KeyboardInterrupt:
        return 130
    shutil.rmtree(options.dir, ignore_errors=True)
    options.dir.mkdir(parents=True)
    console = Console()
    path = MainPath(options.dir, options.rate, target, options.captures)
    board = Board(path)
    try:
        with Live(board, console=console, refresh_per_second=4, transient=False):
            path.start()
            live = 0.0
            for at, kind in plan(options.captures, options.seconds):
                board.run_for(at - live)
                live = at
                path.strike(kind)
            board.run_for(options.seconds - live)
            board.drain(DRAIN_S)
            board.end()
        proof = path.prove()
        console.print(closing_table(board, proof))
        if path.faults:
            console.print(faults_table(path))
        console.print(f"[dim]plots of the run:[/] {write_page(options.dir / 'report.html', board, proof)}")
        console.print(f"[dim]{target.name}:[/] {target}   [dim]capture:[/] {options.dir / path.captures[-1]}")
        return 0 if proof.equal else 1
    except KeyboardInterrupt:
        console.print("\nStopped; ending every process.")
        return 130
    except (ChildError, subprocess.SubprocessError, TimeoutError, TidegateError) as error:
        console.print(str(error), getattr(error, "stderr", "") or "", style="red", markup=False)
        return 1
    finally:
        path.stop()


if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    print(f"demo took {time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(code)
