"""What a report must not tell: who the user is, what their machine is called, and what opens their accounts."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

#: Environment variables whose value opens something.
_SECRET = re.compile(
    r"token|secret|passw|passphrase|credential|auth|api_?key|access_?key|private_?key|_key$|_pat$|_pwd$", re.I
)
#: Values of such variables that are switches.
_HARMLESS = ("true", "false", "none", "null", "auto", "default")
#: The user and password, or the token, of a url.
_URL_USER = r"(?:(?<=://)|(?<=:\\/\\/))[^\s/'\"<>]+(?=@)"
#: Where systems keep their users' folders; MSYS, WSL and Wine write these paths in ways of their own.
_USERS = (
    r"([\\/]+(?:Users|home|Documents and Settings)[\\/]+)(?!(?:Public|Default|All Users)\b)[^\\/\s\"'<>|:;,*?()\[\]]+"
)
_RULES = [
    (re.compile(_URL_USER), "<secret>"),
    # conda's tokens.
    (re.compile(r"(:\\?/\\?/[^\s'\"]*?\\?/t\\?/)[^\\/\s'\"<>]+", re.I), r"\1<secret>"),
    (re.compile(r"((?:\bBearer|Authorization: *\w+) )[\w.~+/=-]{8,}", re.I), r"\1<secret>"),
    (re.compile(r"((?:token|passw(?:or)?d|secret|api[_-]?key|access[_-]?key)=)[^\s&'\"<>;]+", re.I), r"\1<secret>"),
]


@dataclass(frozen=True)
class Names:
    """What is looked for in a text, besides what looks like a secret by itself."""

    users: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()


def read_names(environment: Mapping[str, str] = os.environ) -> Names:
    """Return the names and secrets of whoever runs this."""
    users = {environment.get(name, "") for name in ("USERNAME", "USER", "LOGNAME")}
    homes = {environment.get(name, "") for name in ("USERPROFILE", "HOME")}
    hosts = {environment.get(name, "") for name in ("COMPUTERNAME", "HOSTNAME", "USERDOMAIN", "USERDNSDOMAIN")}
    hosts |= {platform.node(), socket.gethostname()}
    try:
        users.add(getpass.getuser())
        homes.add(str(Path.home()))
    except (OSError, RuntimeError, KeyError, ImportError):
        pass  # an account without a name or a home
    # A user's folder is called after them, if sometimes not quite.
    users |= {re.split(r"[\\/]", home.rstrip("\\/"))[-1] for home in homes}
    hosts |= {host.split(".")[0] for host in hosts}
    secrets: set[str] = set()
    for name, value in environment.items():
        if _SECRET.search(name):
            secrets.update(line.strip() for line in value.splitlines())
        for found in re.findall(_URL_USER, value):
            secrets.update(unquote(part) for part in found.split(":", 1)[-1:])
    return Names(
        _sort(users),
        _sort(home.rstrip("\\/") for home in homes if len(home.rstrip("\\/")) > 2),
        _sort(host for host in hosts if host.lower() != "localhost"),
        _sort(secret for secret in secrets if len(secret) > 3 and secret.lower() not in _HARMLESS),
    )


def redact(text: str, names: Names) -> str:
    """Return the text without them, each replaced by what it was: ``<user>``, ``<home>``, ``<host>``, ``<secret>``.

    In any case, with either slash or several, as in a url or with backslashes doubled as in JSON, and in Windows' short form.
    """
    for pattern, replacement in _compile(names):
        text = pattern.sub(replacement, text)
    return text


def redact_all(value: Any, names: Names) -> Any:
    """Return a copy of what json can write, with every text in it redacted but the keys of objects, which are ours."""
    if isinstance(value, str):
        return redact(value, names)
    if isinstance(value, Mapping):
        return {key: redact_all(one, names) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_all(one, names) for one in value]
    return value


@cache
def _compile(names: Names) -> list[tuple[re.Pattern[str], str]]:
    rules = [(_match(secret, short=8), "<secret>") for secret in names.secrets]
    rules += _RULES
    rules += [(_match_home(home), "<home>") for home in names.homes]
    for user in names.users:
        rules.append((_match(user), "<user>"))
        if len(short := re.sub(r"[ .]", "", user)[:6]) < len(user):
            rules.append((re.compile(rf"(?<![^\W_]){re.escape(short)}~\d", re.I), "<user>"))
    # After the names: this one ends at a space.
    rules += [(re.compile(_USERS, re.I), r"\1<user>")]
    return rules + [(_match(host), "<host>") for host in names.hosts]


def _match_home(home: str) -> re.Pattern[str]:
    """Return what finds a home folder; /root is none in /var/root, but C:\\Users\\me is one in -IC:\\Users\\me."""
    before = r"(?<![\w.-])" if home.startswith("/") else ""
    return re.compile(rf"{before}{_spell(home)}(?![^\W_])", re.I)


def _match(name: str, short: int = 1000) -> re.Pattern[str]:
    """Return what finds a name as a word, or anywhere if it is longer than ``short`` or no plain ASCII."""
    spelled = _spell(name)
    if not name.isascii() or len(name) >= short:
        return re.compile(spelled, re.I)
    # As words, names of one or two letters are in every text.
    before = r"(?<=[\\/@])" if len(name) < 3 else r"(?<![^\W_])"
    return re.compile(rf"{before}{spelled}(?![^\W_])", re.I)


def _spell(name: str) -> str:
    """Return a pattern for a name as it is, as in a url, and with its letters as JSON or Python escape them."""
    parts = []
    for part in re.split(r"[\\/]+", name):
        forms = {part, quote(part), part.encode("ascii", "backslashreplace").decode(), json.dumps(part)[1:-1]}
        parts.append("(?:" + "|".join(re.escape(form) for form in _sort(forms)) + ")" if part else "")
    return r"(?:[\\/]+|%5C|%2F)".join(parts)


def _sort(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are not empty, longest first, so that one does not hide a longer one."""
    return tuple(sorted({name for name in names if name}, key=lambda name: (-len(name), name)))
