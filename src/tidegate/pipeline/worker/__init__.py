"""A worker: takes a piece of work, reads its rows, and makes them durable at the sink.

`worker` (its end of the connection), `kept` (state between pieces), `begin` (fences, then reads what
is durable), `deliver` and `load_task` (the two kinds of work), `stages` (from block to block), `pieces`
and `stretch` (how work is cut), `slots` and `transaction` (its writer), `access` and `schemas` (what it
reads of its capture), `damage` and `replay` (the quarantine), `compiling`.
"""
