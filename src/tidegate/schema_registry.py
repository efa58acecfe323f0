"""A schema registry with Confluent's REST API; pipelines and consumers reach it over HTTP.

Calls block. If the registry does not answer, or answers 5xx, 408 or 429, a call makes `ATTEMPTS` attempts
within a few seconds. Then it raises Retryable, which names the registry; the caller begins again later and
has lost nothing. Other 4xx answers raise InvalidInput at once. Credentials are in the URL before the host; no
error and no log line contains them. The requests: docs/formats/avro.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from tidegate.config.checks import check_registry_url
from tidegate.errors import InvalidInput, Retryable, TidegateError

if TYPE_CHECKING:
    import httpx

ATTEMPTS: Final = 5
PAUSES_S: Final = (0.1, 0.3, 0.8, 1.8)
TIMEOUT_S: Final = 10.0
MAX_ANSWER: Final = 16 << 20
"""The largest answer in bytes. A schema of 4096 columns with TiCDC's attributes has about one million."""
ILL: Final = frozenset({408, 429})
_JSON: Final = "application/vnd.schemaregistry.v1+json"
_HEADERS: Final = {
    "Content-Type": _JSON,
    "Accept": f"{_JSON}, application/vnd.schemaregistry+json, application/json",
}


class HttpRegistry:
    """One registry. Picklable by its URL; not thread-safe."""

    def __init__(self, url: str, sleep: Callable[[float], None] = time.sleep) -> None:
        """`url` contains the credentials, if there are any. Raises InvalidInput as `check_registry_url`."""
        check_registry_url(url)
        parts, self._url, self._sleep = urlsplit(url), url, sleep
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self.where = (
            f"{parts.scheme}://{host}{f':{parts.port}' if parts.port else ''}{parts.path.rstrip('/')}"
        )
        """The address without credentials."""
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        self._auth = (user, password) if user or password else None
        self._client: httpx.Client | None = None

    def __repr__(self) -> str:
        return f"HttpRegistry({self.where})"

    def __reduce__(self) -> tuple[type[HttpRegistry], tuple[str]]:
        return HttpRegistry, (self._url,)

    def register(self, subject: str, schema: str) -> int:
        """Register a schema under a subject; returns its id. A schema that exists already keeps its id."""
        found = self._call("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
        assert found is not None
        number = found.get("id")
        if type(number) is not int or not 0 < number < 1 << 31:
            raise self._unexpected(f"it answered a registration with the id {str(number)[:100]}")
        return number

    def look_up(self, number: int) -> str | None:
        """The schema of an id; None if the registry has no such id."""
        found = self._call("GET", f"/schemas/ids/{number}", missing_is_none=True)
        if found is None:
            return None
        schema, kind = found.get("schema"), found.get("schemaType", "AVRO")
        if not isinstance(schema, str) or kind != "AVRO":
            raise self._unexpected(f"schema {number} is no Avro schema")
        return schema

    def check(self) -> None:
        """Raises Retryable unless it answers, InvalidInput if it requires other credentials."""
        self._call("GET", "/subjects", any_json=True)

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        missing_is_none: bool = False,
        any_json: bool = False,
    ) -> dict[str, Any] | None:
        import httpx  # here, because its import takes 0.2 s, and few topics have a registry

        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(PAUSES_S[min(attempt, len(PAUSES_S)) - 1])
            try:
                status, found = self._ask(method, path, body)
            except httpx.HTTPError as error:
                why = f"{type(error).__name__}: {error}"
                continue
            if status >= 500 or status in ILL:
                why = f"it answered {status}{_reason(found)}"
                continue
            # A proxy's 404 has no error_code. Only the registry itself can say that there is no such thing.
            if status == 404 and missing_is_none and isinstance(found, dict) and "error_code" in found:
                return None
            if status != 200:
                raise self._refused(status, found, method, path)
            if isinstance(found, dict) or any_json:
                return found if isinstance(found, dict) else {}
            raise self._unexpected("it answered something other than a JSON object")
        raise Retryable(
            "the schema registry does not answer",
            where=self.where,
            why=f"{why} ({ATTEMPTS} attempts)",
            fix="check that it runs and can be reached from here; the work continues when it answers",
        )

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        """The status and JSON of one answer; None if its body is not JSON."""
        import httpx

        if self._client is None:
            self._client = httpx.Client(auth=self._auth, headers=_HEADERS, timeout=TIMEOUT_S)
        with self._client.stream(method, self.where + path, json=body) as answer:
            # Read in parts: at a wrong address there may be something that never ends.
            data = bytearray()
            for part in answer.iter_bytes():
                data += part
                if len(data) > MAX_ANSWER:
                    raise self._unexpected(f"its answer has more than {MAX_ANSWER:,} bytes")
            try:
                return answer.status_code, httpx.Response(200, content=bytes(data)).json()
            except ValueError:
                return answer.status_code, None

    def _unexpected(self, why: str) -> TidegateError:
        return InvalidInput(
            "the schema registry does not answer as one",
            where=self.where,
            why=why,
            fix="check that schema-registry names the base of a registry's REST API",
        )

    def _refused(self, status: int, found: Any, method: str, path: str) -> InvalidInput:
        fix = "check that schema-registry names the base of a registry's REST API"
        if status in (401, 403):
            fix = "check the user and the password in schema-registry"
        elif status == 409:
            fix = (
                "set the compatibility of the subject to NONE, or run one changefeed per table: tables that "
                "share a topic share its subject, and so do the versions of a table"
            )
        elif status == 422:
            fix = "the registry takes the schema for an invalid one: use another protocol, or other names"
        return InvalidInput(
            "the schema registry refuses a schema" if method == "POST" else "the schema registry refuses",
            where=f"{self.where}{path}",
            why=f"it answered {status}{_reason(found)}",
            fix=fix,
        )


def _reason(found: Any) -> str:
    """The registry's reason for its refusal."""
    if isinstance(found, dict) and isinstance(found.get("message"), str):
        return f": {found['message'][:500]}"
    return ""
