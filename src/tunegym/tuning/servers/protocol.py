"""The handshake between an experiment and a ``tunegym serve``, and the token that both know.

The server greets with protocol, version and a nonce. The client answers with its own nonce, a proof that it knows the
token (an HMAC over both nonces), the class that it expects and the constructor's arguments. The server refuses with a
reason, or accepts with its own proof. The token itself is never sent. Then a server process takes over (see ``serve``).
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tunegym.core.errors import TunegymError
from tunegym.tuning.workloads.signature import GymClass, argument_problems

PROTOCOL = "tunegym-server"
VERSION = 1
HELLO_LIMIT = 64 << 10
"""Largest message, in bytes, that is read before the other side has proved that it knows the token."""
TOKEN_VARIABLE = "TUNEGYM_SERVER_TOKEN"
SHORTEST_TOKEN = 16
"""A shorter one could be guessed from an overheard handshake."""

_LONGEST_TOKEN = 4096
_TOKEN_HINT = f"give both ends the same token, by a file or in {TOKEN_VARIABLE}"


class RefusedError(Exception):
    """The two ends don't belong together; if ``passing``, it may work a little later."""

    def __init__(self, reason: str, hint: str = "", *, passing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.passing = passing

    def message(self) -> dict[str, Any]:
        """Return the message for the other side."""
        return {"refused": self.reason, "hint": self.hint, "passing": self.passing}


def new_nonce() -> str:
    """Return a number that is used once."""
    return secrets.token_hex(16)


def greeting(nonce: str) -> dict[str, Any]:
    """Return the server's first message."""
    return {"protocol": PROTOCOL, "version": VERSION, "nonce": nonce}


def read_greeting(message: Any) -> str:
    """Return the server's nonce. Raises ``RefusedError``."""
    _check_refusal(message)
    _check_protocol(message, "the server", "this tunegym")
    return _text(message, "nonce")


def hello(token: str, theirs: str, ours: str, env_class: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the client's answer to a greeting; ``env_class`` is empty if any class is fine."""
    proof = _proof(token, "client", theirs, ours)
    return {**greeting(ours), "proof": proof, "class": env_class, "arguments": dict(arguments)}


def read_hello(message: Any, token: str, nonce: str, served: GymClass) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the constructor's arguments, and the answer that accepts the client. Raises ``RefusedError``."""
    _check_protocol(message, "the client", "this server")
    theirs = _text(message, "nonce")
    _check_proof(message, _proof(token, "client", nonce, theirs), "the token is wrong")
    expected = _text(message, "class")
    if expected and expected != served.reference:
        what = f"it serves {served.reference}, and {expected} is wanted"
        raise RefusedError(what, "set env_class to the class that is served, or leave it out")
    arguments = message.get("arguments")
    if not isinstance(arguments, dict):
        raise RefusedError("this is no hello: its arguments are missing")
    problems = argument_problems(served, arguments)
    if problems:
        found = "; ".join(f"{problem.where}: {problem.what}" for problem in problems)
        hints = [problem.hint for problem in problems if problem.hint]
        raise RefusedError(f"{found} (it takes: {problems[0].allowed})", hints[0] if hints else "")
    return arguments, {"accepted": True, "proof": _proof(token, "server", nonce, theirs)}


def check_accepted(message: Any, token: str, theirs: str, ours: str) -> None:
    """Raise ``RefusedError`` unless the server accepted, and proved that it knows the token."""
    _check_refusal(message)
    if not isinstance(message, dict) or message.get("accepted") is not True:
        raise RefusedError("it doesn't answer as a tunegym server does")
    _check_proof(message, _proof(token, "server", theirs, ours), "the server doesn't know the token")


def _check_refusal(message: Any) -> None:
    if isinstance(message, dict) and isinstance(message.get("refused"), str):
        hint = str(message.get("hint") or "")
        raise RefusedError(message["refused"], hint, passing=message.get("passing") is True)


def _check_protocol(message: Any, they: str, we: str) -> None:
    if not isinstance(message, dict) or message.get("protocol") != PROTOCOL:
        raise RefusedError(f"{they} doesn't speak the protocol {PROTOCOL}", "is the port that of a tunegym serve?")
    version = message.get("version")
    if version != VERSION or isinstance(version, bool):
        what = f"{they} speaks version {version!r:.20} of the protocol, and {we} speaks version {VERSION}"
        raise RefusedError(what, "use the same version of tunegym at both ends")


def _text(message: Mapping[str, Any], key: str) -> str:
    found = message.get(key)
    if not isinstance(found, str):
        raise RefusedError(f"this is no message of the protocol: its {key} is missing")
    return found


def _proof(token: str, role: str, server: str, client: str) -> str:
    text = "\0".join((PROTOCOL, str(VERSION), role, server, client))
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def _check_proof(message: Mapping[str, Any], expected: str, what: str) -> None:
    if not hmac.compare_digest(_text(message, "proof").encode("utf-8", "replace"), expected.encode()):
        raise RefusedError(what, _TOKEN_HINT)


# tokens -----------------------------------------------------------------------------------------------


def read_token(file: Path | None, *, shortest: int = 1) -> str | None:
    """Return the token in the file or, without a file, in the environment; None if there is none.

    Raises:
        TunegymError: the file can't be read or holds no token, or the token is shorter than ``shortest``.
    """
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            return None
    else:
        try:
            with file.open(encoding="utf-8") as opened:
                token = opened.read(_LONGEST_TOKEN + 1).strip()
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            hint = "write the token that tunegym serve has into it"
            raise TunegymError(f"the token file {file} can't be read: {reason}", hint=hint) from None
        if not token or len(token) > _LONGEST_TOKEN:
            what = "is empty" if not token else f"holds more than {_LONGEST_TOKEN} characters"
            hint = "a token is one line of text, such as 32 hex digits"
            raise TunegymError(f"the token file {file} {what}", hint=hint)
    if len(token) < shortest:
        what = f"the token in {file or TOKEN_VARIABLE} is shorter than {shortest} characters, and could be guessed"
        raise TunegymError(what, hint="make one with: python -c 'import secrets; print(secrets.token_hex(16))'")
    return token
