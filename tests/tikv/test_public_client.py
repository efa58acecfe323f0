"""A public client (`tikv-client`, PyPI) transfers money while its regions split, merge and change leaders.

In a process of its own: it may abort at its interpreter's exit, after all work is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

from tidegate.errors import InvalidInput
from tidegate.tikv import keys
from tidegate.tikv.server import EmbeddedUpstream

ACCOUNTS = 24
BANK = """
import json, random, sys, threading
from tikv_client import TransactionClient
enough = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), enough.set()), daemon=True).start()
pd, seed, count = sys.argv[1], int(sys.argv[2]), 24
chance = random.Random(seed)
client = TransactionClient.connect([pd])
txn = client.begin(pessimistic=False)
for i in range(count):
    txn.put(b"acct%02d" % i, b"100")
txn.commit()
print("open", flush=True)
done = failed = 0
texts = []
while (done < 150 or not enough.is_set()) and failed < 50_000:
    one, two = chance.sample(range(count), 2)
    pessimistic = chance.random() < 0.5
    txn = client.begin(pessimistic=pessimistic)
    try:
        get = txn.get_for_update if pessimistic else txn.get
        a, b = int(get(b"acct%02d" % one)), int(get(b"acct%02d" % two))
        txn.put(b"acct%02d" % one, b"%d" % (a - 1))
        txn.put(b"acct%02d" % two, b"%d" % (b + 1))
        txn.commit()
        done += 1
    except Exception as error:
        failed += 1
        texts.append(str(error)[:300])
        try:
            txn.rollback()
        except Exception:
            pass
snapshot = client.snapshot(client.current_timestamp(), pessimistic=False)
values = [int(value) for _, value in snapshot.scan(b"acct", b"acd", 1000, True)]
found = {"done": done, "failed": failed, "sum": sum(values), "accounts": len(values), "texts": texts[:3]}
print(json.dumps(found), flush=True)
"""


def test_a_public_client_keeps_the_sum_over_splits_merges_and_leader_moves(tmp_path: Path) -> None:
    chance = Random(4)
    with EmbeddedUpstream(tmp_path, stores=3) as upstream:
        env = os.environ | {"PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-c", BANK, upstream.pd_addr, "4"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        moves = 0
        while child.poll() is None and moves < 40:
            regions = upstream.regions.all
            region = chance.choice(regions)
            kind = chance.choice(("split", "merge", "transfer", "transfer"))
            try:
                if kind == "split" and len(regions) < 8:
                    cut = keys.encode(b"acct%02d" % chance.randrange(ACCOUNTS))
                    upstream.operators.split_at([cut])
                elif kind == "merge" and len(regions) > 1:
                    upstream.operators.merge(region.id, upstream.neighbour(region.id))
                else:
                    upstream.operators.transfer(region.id, chance.choice(region.stores))
                moves += 1
            except InvalidInput:
                continue
            try:
                child.wait(0.08)
            except subprocess.TimeoutExpired:
                continue
        child.stdin.close()
        line = child.stdout.readline()
        child.kill()
        child.wait()
        found = json.loads(line)
        assert found["accounts"] == ACCOUNTS
        assert found["sum"] == 100 * ACCOUNTS, found
        assert found["done"] >= 150, found
        assert moves == 40
