"""The token that protects the HTTP API if other machines can reach it.

`tidegate --token-file FILE ...` puts the file's path into the environment. The server then answers only
requests with the token, and commands send it to the server. The file is the secret; it is read once, at a
start.
"""

from __future__ import annotations

import base64
import hmac
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.errors import InvalidInput

TOKEN_FILE: Final = "TIDEGATE_TOKEN_FILE"
CHARACTERS: Final = range(16, 1025)
"""The allowed lengths of a token."""


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A secret that is never part of a printed value."""

    secret: str = field(repr=False)

    @classmethod
    def from_environment(cls) -> AccessToken | None:
        """The token that TIDEGATE_TOKEN_FILE names; None without it. Raises InvalidInput for a bad file."""
        name = os.environ.get(TOKEN_FILE)
        return cls.from_file(Path(name)) if name else None

    @classmethod
    def from_file(cls, path: Path) -> AccessToken:
        """The first line of a file. Raises InvalidInput, which does not quote it."""
        try:
            with path.open(encoding="ascii") as file:
                # With a limit: the path may be that of a large file, by mistake.
                secret = file.readline(2 * CHARACTERS.stop).strip()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise InvalidInput(
                "the token cannot be read", where=str(path), why=str(why), fix="check --token-file"
            ) from None
        if len(secret) not in CHARACTERS or not secret.isprintable() or " " in secret:
            raise InvalidInput(
                "the token cannot be used",
                where=str(path),
                why=f"its first line has {len(secret)} characters",
                fix=f"write {CHARACTERS.start} to {CHARACTERS.stop - 1} letters and digits, such as those of "
                "`openssl rand -hex 32`",
            )
        return cls(secret)

    @property
    def header(self) -> dict[str, str]:
        """The header that a client sends."""
        return {"Authorization": f"Bearer {self.secret}"}

    def opens(self, authorization: str) -> bool:
        """Whether an Authorization header carries it: Bearer, or Basic with it as the password.

        TiCDC's `cdc cli --user ANY --password TOKEN` sends the latter.
        """
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode("ascii").partition(":")[2]
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self.secret.encode())
