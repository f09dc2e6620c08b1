"""Passwords in addresses, out of what is shown: a page is mailed, and the folder it comes from is not."""

from __future__ import annotations

import re

# What a URL's grammar takes for the password, else what a database's driver does. Rather too much than too little.
_PASSWORD = re.compile(r"(//[^\s/:]*:)(?:[^\s/?#]*|[^\s@]*)@")


def masked(text: str) -> str:
    """``text`` with ``//user:***@`` for every ``//user:password@`` in it."""
    return _PASSWORD.sub(r"\1***@", text) if "//" in text else text
