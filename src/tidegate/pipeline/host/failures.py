"""Translates errors of the host: into an error of our own, or into the report that ends an incarnation."""

from __future__ import annotations

from tidegate.errors import Fenced, Retryable, TidegateError
from tidegate.model.reports import Failed


def failure(error: TidegateError) -> Failed:
    """The error as a report to the control process. Unless it is Retryable or Fenced, it is not retried."""
    found = Failed.of(error)
    return Failed(found.what, found.where, found.why, found.fix, retry=isinstance(error, Retryable | Fenced))


def known(error: Exception, what: str, where: str) -> TidegateError:
    """An error as one of ours. Any other error becomes Retryable, because its cause may be temporary."""
    if isinstance(error, TidegateError):
        return error
    return Retryable(what, where=where, why=repr(error)[:2000])
