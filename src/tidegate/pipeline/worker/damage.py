"""Quarantines damaged rows and misencoded messages, and stops the feed if its settings say so.

An entry is *damaged* if it cannot be decoded or differs from the checksum it carries; upstream sent it like
this. A message is *misencoded* if it decodes to something other than its row; that happened here. Both are on
disk in the changefeed's quarantine before any later row is emitted.
"""

from __future__ import annotations

from typing import Any

from tidegate.codec.readback import Misencoded
from tidegate.errors import Fatal
from tidegate.mounter.decode import Quarantined
from tidegate.mounter.integrity import Mismatch
from tidegate.pipeline.worker.access import QUARANTINE, Access
from tidegate.pipeline.worker.stages import Encoded


def keep_damaged(access: Access, span: str, encoded: Encoded) -> None:
    """Write damaged entries with their bytes to the quarantine; they are durable on return.

    Called before the block is sent. Raises Fatal if the settings say that the feed stops at damage.
    """
    aside = [_undecodable(span, one) for one in encoded.bad]
    aside += [_mismatched(span, one) for one in encoded.damaged]
    if aside:
        # Before the feed may stop, so that the bytes are on disk when a user reads the error.
        access.set_aside(aside)
    if access.spec.config.integrity.stops:
        reasons = [one.render() for one in encoded.damaged]
        reasons += [f"{one.table}: {one.why.splitlines()[0]}" for one in encoded.bad if one.table]
        if reasons:
            raise Fatal(
                f"[CDC:ErrCorruptedDataMutation]changefeed {access.spec.changefeed} stopped due to "
                "corrupted data mutation received",
                where=f"span {span}; the rows' bytes are in {QUARANTINE}",
                why=reasons[0] + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""),
                fix="repair the rows upstream, or pause the changefeed and set "
                "corruption-handle-level = 'warn' to let them pass",
            )


def keep_misencoded(access: Access, span: str, encoded: Encoded) -> None:
    """Write misencoded messages to the quarantine; they are durable on return.

    Called before the block is sent. Raises Fatal if the settings say that the feed stops at such messages.
    """
    if not encoded.misencoded:
        return
    # Before the feed may stop: the reason refers to what the file has.
    access.set_aside([_misencoded(span, one) for one in encoded.misencoded])
    if access.spec.config.integrity.stops_at_misencoded:
        others = len(encoded.misencoded) - 1
        raise Fatal(
            f"changefeed {access.spec.changefeed} stopped: a message does not say what its row is",
            where=f"span {span}; the messages' bytes are in {QUARANTINE}",
            why=encoded.misencoded[0].render() + (f" (and {others} more)" if others else ""),
            fix="report it with that file: it is a defect of Tidegate, or of this machine's memory, and "
            "nothing of it was sent; to let such messages pass, pause the changefeed and set "
            "corruption-handle-level = 'warn'",
        )


def _undecodable(span: str, bad: Quarantined) -> dict[str, Any]:
    where = {"span": span, "commit_ts": bad.commit_ts} | ({"table": bad.table} if bad.table else {})
    return {
        "where": where,
        "why": bad.why,
        "key": bad.key,
        "value": bad.value,
        "old_value": bad.old_value,
    }


def _misencoded(span: str, bad: Misencoded) -> dict[str, Any]:
    where = {"span": span, "commit_ts": bad.commit_ts, "table": bad.table}
    where |= {name: text for name, text in (("row", bad.row), ("column", bad.column)) if text}
    return {"where": where, "why": f"encoded otherwise: {bad.why}", "key": bad.key, "value": bad.value}


def _mismatched(span: str, bad: Mismatch) -> dict[str, Any]:
    return {
        "where": {
            "span": span,
            "commit_ts": bad.commit_ts,
            "table": bad.table,
            "handle": bad.handle,
            "image": bad.image,
        },
        "why": bad.render(),
        "checksum": {
            "version": bad.check.version,
            "expected": bad.check.expected,
            "found": bad.check.found,
        },
        "key": bad.key,
        "value": bad.value,
        "old_value": bad.old_value,
    }
