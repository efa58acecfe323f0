"""Errors of the host in the forms that others want: one of our own, or what ends an incarnation."""

from __future__ import annotations

from tidegate.errors import Fenced, Retryable, TidegateError
from tidegate.model.reports import Failed


def failure(error: TidegateError) -> Failed:
    """As the control process wants it: only what is Fatal stops the changefeed."""
    said = Failed.of(error)
    return Failed(said.what, said.where, said.why, said.fix, retry=isinstance(error, Retryable | Fenced))


def known(error: Exception, what: str, where: str) -> TidegateError:
    """An error as one of ours; what nobody raised on purpose may go away."""
    if isinstance(error, TidegateError):
        return error
    return Retryable(what, where=where, why=repr(error)[:2000])
