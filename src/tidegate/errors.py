"""The one tree of exceptions, by what the caller should do about them.

Every message has up to four parts, and each has one form:

    the owner does not answer                           what: one sentence, with a subject and a verb
      where: capture b at 10.0.0.2:8300                 a name: a file, table, position or address
      why:   UNAVAILABLE: connection refused            the cause, as far as it is known
      to do: check that its process runs                an order; "nothing: ..." if it ends by itself

Each part begins in lower case, except with a proper name (TiKV, PD), and none ends in a full stop. A part
that needs two clauses joins them with ";" or ":". `what` may begin with the code of TiCDC in brackets. Only
an error that the program itself handles, by a retry or in the quarantine, may lack `to do`.

Text for these classes must never contain a secret: pass URIs through `tidegate.log.redact` or `shown` first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

PART_MAX = 2_000
"""The length at which a text is cut, so that a value of megabytes is neither sent back nor logged."""
DEFECT: Final = "restart the capture, and report this with its log"
"""The remedy of an error that a defect of Tidegate caused."""
_QUERY = re.compile("[?#]")


def cut(text: str) -> str:
    """At most PART_MAX characters of a text, with its full length if it was cut."""
    text = str(text)  # a Secret stays hidden
    return text if len(text) <= PART_MAX else f"{text[:PART_MAX]}... ({len(text):,} characters)"


class TidegateError(Exception):
    """Base of all errors raised on purpose.

    `what`, `where` and `why` are the parts of those names, and `fix` is the part `to do`: the module's
    docstring has their forms.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(self.render())

    def render(self) -> str:
        """The message for a person, one line for each part, each cut to PART_MAX characters."""
        parts = [cut(self.what)]
        parts += [f"  where: {cut(self.where)}"] if self.where else []
        parts += [f"  why:   {cut(self.why)}"] if self.why else []
        parts += [f"  to do: {cut(self.fix)}"] if self.fix else []
        return "\n".join(parts)


class InvalidInput(TidegateError):
    """The request, the configuration or a file is wrong: fix it; a retry cannot help."""

    exit_code = 2


class Undecodable(InvalidInput):
    """Bytes that are not what their format says: quarantine them with their position and continue."""


class Retryable(TidegateError):
    """Something outside is unavailable or busy: try again after a back-off."""


class Fenced(TidegateError):
    """A newer incarnation holds the grant: stop writing at once, never retry under the old token."""


class Fatal(TidegateError):
    """Continuing would lose or corrupt data: stop and let a person decide."""


def shown(address: str) -> str:
    """The part of an address that may be shown: without user, password and query. A path stays as it is."""
    scheme, found, rest = address.partition("://")
    if not found:
        return address
    place = _QUERY.split(rest, maxsplit=1)
    if "@" in "".join(place[1:]):  # a password that is not encoded may contain `?` or `#`
        return f"{scheme}://..."
    return f"{scheme}://{place[0].rpartition('@')[2]}"


@dataclass(frozen=True, slots=True)
class Code:
    """One error code, as answers and the `error` of a changefeed show it."""

    meaning: str
    to_do: str


CODES: Final[Mapping[str, Code]] = MappingProxyType(
    {
        "CDC:ErrAPIInvalidParam": Code(
            "The request, its sink URI or its settings are wrong. The message names the option.",
            "Correct the request.",
        ),
        "CDC:ErrAPINotFound": Code(
            "There is no such route, or the route does not have this method.",
            "Use a route of the API; its base path is /api/v2.",
        ),
        "CDC:ErrCaptureNotExist": Code("No capture has this id.", "GET /captures lists the captures."),
        "CDC:ErrChangeFeedAlreadyExists": Code(
            "A changefeed of this name exists.", "Choose another name, or remove the changefeed first."
        ),
        "CDC:ErrChangeFeedNotExists": Code(
            "No changefeed has this name in this namespace.",
            "GET /changefeeds lists the changefeeds. Start a reader's query with a new checkpoint.",
        ),
        "CDC:ErrChangefeed": Code(
            "The changefeed failed for another reason. It is retried while its state is warning.",
            "Follow the message. If the state is failed, resume the changefeed afterwards.",
        ),
        "CDC:ErrChangefeedUnreadable": Code(
            "The stored changefeed is damaged, or of a later version. It does not run.",
            "Start the version that wrote it, or remove it. Its history is held meanwhile.",
        ),
        "CDC:ErrChangefeedUpdateRefused": Code(
            "The changefeed cannot be changed in this way, or not in its present state.",
            "Pause the changefeed if the message asks for it; otherwise create another changefeed.",
        ),
        "CDC:ErrColumnSelectorFailed": Code(
            "A column selector leaves out a column of a primary key or of a unique key.",
            "Add the column to the selector of the table.",
        ),
        "CDC:ErrCorruptedDataMutation": Code(
            "A row does not match its checksum, and corruption-handle-level is error.",
            "Look at the row with `tidegate quarantine`; repair it upstream, or choose warn.",
        ),
        "CDC:ErrDiskFull": Code(
            "The disk of the data folder is full. Changefeeds wait.",
            "Free disk space. The changefeeds continue without a resume.",
        ),
        "CDC:ErrEventStoreQuota": Code(
            "The event store has reached its quota, and this changefeed blocks others that share its tables.",
            "Find out what the changefeed waits for, or raise --event-store-quota. It is restarted.",
        ),
        "CDC:ErrExpressionColumnNotFound": Code(
            "A filter expression uses a column that its table does not have.", "Correct the expression."
        ),
        "CDC:ErrExpressionParseFailed": Code(
            "A filter expression is not one that can be used.", "Correct the expression."
        ),
        "CDC:ErrFailedToFilterDML": Code(
            "A filter expression cannot be computed for a row.",
            "Change the expression so that it can be computed for every row of the table.",
        ),
        "CDC:ErrFatal": Code(
            "The changefeed stopped because continuing would lose or corrupt data.",
            "Read the message before you resume: a retry alone does not help.",
        ),
        "CDC:ErrInternalServerError": Code(
            "The capture met an error that the request did not cause.",
            "Look into the capture's log; report it if the log shows a defect.",
        ),
        "CDC:ErrInvalidIgnoreEventType": Code(
            "ignore-event names a kind of change that does not exist.", "Use a name of docs/filters.md."
        ),
        "CDC:ErrKafkaTopicExprInvalid": Code(
            "The topic of a dispatch rule cannot be used.", "Correct the topic: docs/dispatchers.md."
        ),
        "CDC:ErrPipelineHung": Code(
            "A worker of the pipeline had work and did nothing for stall-timeout. It is killed.",
            "Nothing: the changefeed is restarted. Raise stall-timeout if the machine is only slow.",
        ),
        "CDC:ErrPuller": Code(
            "The puller cannot follow the upstream at the moment, and tries again.",
            "Follow the message: most often a TiKV store or PD is not reachable.",
        ),
        "CDC:ErrPullerHung": Code(
            "The puller process was silent for --puller-timeout. It is killed and restarted.",
            "Nothing. Raise --puller-timeout if the machine is only slow.",
        ),
        "CDC:ErrReaderDDL": Code(
            "A reader's table is dropped or has other columns from some ts on, or rows moved without events.",
            "Restart the query; the message says with which option.",
        ),
        "CDC:ErrReaderSilent": Code(
            "A reader's query was silent for too long, and the changes kept for it were discarded.",
            "Remove the changefeed, and start the query with a new checkpoint.",
        ),
        "CDC:ErrReaderTicket": Code(
            "A reader's ticket is invalid: its reader was removed, or the ticket was changed.",
            "Restart the query.",
        ),
        "CDC:ErrRetryable": Code(
            "Something outside is unavailable. The changefeed is retried with a back-off.",
            "Restore what the message names. After changefeed-error-stuck-duration the changefeed fails.",
        ),
        "CDC:ErrSinkHung": Code(
            "The sink did not answer for stall-timeout. It is opened again.",
            "Check the sink. Raise stall-timeout if it is only slow.",
        ),
        "CDC:ErrSinkSlow": Code(
            "A worker waited for this changefeed's sink while other changefeeds waited for a worker.",
            "Check the sink. The changefeed is restarted.",
        ),
        "CDC:ErrSnapshotLostByGC": Code(
            "Upstream's GC has removed versions that the changefeed needs.",
            "Create the changefeed again with a later start-ts, and load its tables again.",
        ),
        "CDC:ErrStartTsBeforeGC": Code(
            "The start-ts is not above upstream's GC safepoint.", "Use the start-ts that the message names."
        ),
        "CDC:ErrTableIneligible": Code(
            "Some tables have neither a primary key nor a unique key of NOT NULL columns.",
            "Give them a key, set ignore-ineligible-table or force-replicate, or exclude them.",
        ),
        "CDC:ErrTargetTsBeforeStartTs": Code(
            "The target-ts is not above the start-ts or the checkpoint.", "Choose a later target-ts."
        ),
        "CDC:ErrUnavailable": Code(
            "The capture cannot answer now: it starts, or PD, the owner or the sink is unavailable.",
            "Try again later.",
        ),
        "CDC:ErrUnhealthy": Code(
            "The capture runs and cannot do its work; GET /health says why.", "Follow the message."
        ),
    }
)
"""Every code, with its meaning and the remedy: docs/reference/errors.md is made from it.

Names are TiCDC's where TiCDC has the error (tiflow `pkg/errors/cdc_errors.go`).
"""
