"""How the two ends of a connection find out that they belong together.

``tunegym serve`` greets first: protocol, version, and a number that is used once. Whoever connects answers with such a
number of its own, a proof that it knows the token, the class that it expects, and what the constructor is to be given.
It is refused with a reason, or accepted with a proof that the other side knows the token, too. The token itself never
travels. Then a process of the server's takes over (see ``serving``).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from tunegym.tuning.workloads.signature import GymClass, argument_problems

PROTOCOL = "tunegym-server"
VERSION = 1
HELLO_LIMIT = 64 << 10
"""Largest message, in bytes, that is read before the other side has proved that it knows the token."""
TOKEN_VARIABLE = "TUNEGYM_SERVER_TOKEN"

_SAME_VERSION = "use the same version of tunegym at both ends"
_TOKEN = f"give both ends the same token, by a file or in {TOKEN_VARIABLE}"


class RefusedError(Exception):
    """The two ends don't belong together.

    Attributes:
        reason: what is wrong.
        hint: what to do about it.
        passing: whether it may be right a little later.
    """

    def __init__(self, reason: str, hint: str = "", *, passing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.passing = passing

    def message(self) -> dict[str, Any]:
        """What the other side is told."""
        return {"refused": self.reason, "hint": self.hint, "passing": self.passing}


def new_nonce() -> str:
    """A number that is used once."""
    return secrets.token_hex(16)


def greeting(nonce: str) -> dict[str, Any]:
    """The server's first message."""
    return {"protocol": PROTOCOL, "version": VERSION, "nonce": nonce}


def read_greeting(message: Any) -> str:
    """The server's nonce. Raises ``RefusedError`` for a greeting of something else."""
    refusal = refusal_in(message)
    if refusal is not None:
        raise refusal
    _check_protocol(message, "what listens there", "this tunegym")
    return _text(message, "nonce")


def hello(token: str, theirs: str, ours: str, env_class: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The client's answer; ``env_class`` is empty if any is fine."""
    return {
        "protocol": PROTOCOL,
        "version": VERSION,
        "nonce": ours,
        "proof": _proof(token, "client", theirs, ours),
        "class": env_class,
        "arguments": dict(arguments),
    }


def read_hello(message: Any, token: str, nonce: str, served: GymClass) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the constructor is to be given, and the answer that accepts. Raises ``RefusedError``."""
    _check_protocol(message, "whoever connects", "this server")
    theirs = _text(message, "nonce")
    if not hmac.compare_digest(_text(message, "proof").encode(), _proof(token, "client", nonce, theirs).encode()):
        raise RefusedError("the token is wrong", _TOKEN)
    expected = _text(message, "class")
    if expected and expected != served.reference:
        what = f"it serves {served.reference}, and {expected} is wanted"
        raise RefusedError(what, "set env_class to what is served, or leave it out")
    arguments = message.get("arguments")
    if not isinstance(arguments, dict):
        raise RefusedError("this is no hello: its arguments are missing")
    problems = argument_problems(served, arguments)
    if problems:
        hints = [problem.hint for problem in problems if problem.hint]
        found = "; ".join(f"{one.where}: {one.what}" for one in problems)
        raise RefusedError(f"{found} (it takes: {problems[0].allowed})", hints[0] if hints else "")
    return arguments, {"accepted": True, "proof": _proof(token, "server", nonce, theirs)}


def check_accepted(message: Any, token: str, theirs: str, ours: str) -> None:
    """Raises ``RefusedError`` if we were refused, or by somebody who doesn't know the token."""
    refusal = refusal_in(message)
    if refusal is not None:
        raise refusal
    if not isinstance(message, dict) or message.get("accepted") is not True:
        raise RefusedError("what listens there doesn't answer as a tunegym server does")
    if not hmac.compare_digest(_text(message, "proof").encode(), _proof(token, "server", theirs, ours).encode()):
        raise RefusedError("what listens there doesn't know the token", _TOKEN)


def refusal_in(message: Any) -> RefusedError | None:
    """The refusal that a message is, if it is one."""
    if not isinstance(message, dict) or not isinstance(message.get("refused"), str):
        return None
    return RefusedError(message["refused"], str(message.get("hint") or ""), passing=message.get("passing") is True)


def _check_protocol(message: Any, they: str, we: str) -> None:
    if not isinstance(message, dict) or message.get("protocol") != PROTOCOL:
        raise RefusedError(f"{they} doesn't speak the protocol {PROTOCOL}", "is the port that of a tunegym serve?")
    version = message.get("version")
    if version != VERSION or isinstance(version, bool):
        raise RefusedError(
            f"{they} speaks version {version!r:.20} of the protocol, and {we} speaks version {VERSION}", _SAME_VERSION
        )


def _text(message: Mapping[str, Any], key: str) -> str:
    found = message.get(key)
    if not isinstance(found, str):
        raise RefusedError(f"this is no message of the protocol: its {key} is missing")
    return found


def _proof(token: str, role: str, server: str, client: str) -> str:
    said = "\0".join((PROTOCOL, str(VERSION), role, server, client))
    return hmac.new(token.encode(), said.encode(), hashlib.sha256).hexdigest()
