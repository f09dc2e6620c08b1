"""The token that both ends of a connection know."""

from __future__ import annotations

import os
from pathlib import Path

from tunegym.core.errors import TunegymError
from tunegym.tuning.servers.protocol import TOKEN_VARIABLE

_LONGEST = 4096
SHORTEST = 16
"""What is shorter can be guessed: whoever overhears a handshake may try as many as he likes."""


def served_token(file: Path | None) -> str | None:
    """As ``read_token``, for the end that asks for it.

    Raises:
        TunegymError: it is too short, too.
    """
    token = read_token(file)
    if token is not None and len(token) < SHORTEST:
        where = TOKEN_VARIABLE if file is None else file
        raise TunegymError(
            f"the token in {where} is shorter than {SHORTEST} characters, and could be guessed",
            hint="make one with: python -c 'import secrets; print(secrets.token_hex(16))'",
        )
    return token


def read_token(file: Path | None) -> str | None:
    """The token in the file or, without a file, in the environment; None if there is none either.

    Raises:
        TunegymError: the file can't be read, or holds no token.
    """
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        with file.open(encoding="utf-8") as opened:
            token = opened.read(_LONGEST + 1).strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = "write the token that tunegym serve has into it"
        raise TunegymError(f"the token file {file} can't be read: {reason}", hint=hint) from None
    if not token or len(token) > _LONGEST:
        what = "is empty" if not token else f"holds more than {_LONGEST} characters"
        raise TunegymError(f"the token file {file} {what}", hint="a token is one line of text, such as 32 hex digits")
    return token
