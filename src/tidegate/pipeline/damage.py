"""Rows that are not what they should be: their bytes are kept, and the feed stops if its settings say so.

There are two kinds. An entry is *damaged* when it cannot be decoded, or differs from the checksum that it
carries: it came so from upstream. A message is *misencoded* when it was read back and does not say what its
row is: that happened here. Both are in the changefeed's quarantine, on disk, before anything after them goes
out.
"""

from __future__ import annotations

from typing import Any

from tidegate.codec.readback import Misencoded
from tidegate.errors import Fatal
from tidegate.mounter.decode import Quarantined
from tidegate.mounter.integrity import Mismatch
from tidegate.pipeline.access import QUARANTINE, Access
from tidegate.pipeline.stages import Encoded


def keep_damaged(access: Access, span: str, encoded: Encoded) -> None:
    """Keep damaged entries with their bytes, durably, before anything after them goes out.

    Raises Fatal when the feed is to stop at damage: nothing of this block has been sent then.
    """
    aside = [_undecodable(span, one) for one in encoded.bad]
    aside += [_mismatched(span, one) for one in encoded.damaged]
    if aside:
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
    """Keep messages that do not say what their rows are, durably, before they go out.

    Raises Fatal when the feed is to stop at them: nothing of this block has been sent then.
    """
    if not encoded.misencoded:
        return
    access.set_aside([_misencoded(span, one) for one in encoded.misencoded])
    if access.spec.config.integrity.stops_at_misencoded:
        others = len(encoded.misencoded) - 1
        raise Fatal(
            f"changefeed {access.spec.changefeed} stopped: a message does not say what its row is",
            where=f"span {span}; the messages' bytes are in {QUARANTINE}",
            why=encoded.misencoded[0].render() + (f" (and {others} more)" if others else ""),
            fix="nothing of it was sent. It is a defect of Tidegate, or of this machine's memory: report "
            "it with that file. To let such messages pass, pause the changefeed and set "
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
