"""Urls of packages and locks: variables filled in, secrets left out, file urls as paths."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes, urlsplit

from .errors import BadInput, MachineLacks

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def expand(url: str) -> str:
    """Fill in environment variables, ``$NAME`` or ``${NAME}``: conda-lock keeps them in a lock in place of secrets and paths.

    :raises MachineLacks: one is not set.
    """

    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise MachineLacks(
                f"{hide_secrets(url)} needs the environment variable {name}, which is not set.", fix=f"Set {name}."
            )
        return os.environ[name]

    return _VARIABLE.sub(replace, url)


def hide_secrets(url: str) -> str:
    """A url without user, password and token, for messages.

    >>> hide_secrets("https://me:secret@host/t/abc-123/channel")
    'https://host/t/***/channel'
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that are none: where a secret would begin and end cannot be told
        return "a malformed url"
    if not parts.scheme:
        return url
    path = parts.path.split("/")
    if "t" in path[:-1]:
        path[path.index("t") + 1] = "***"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], path="/".join(path), query="").geturl()


def to_path(url: str, *, windows: bool = os.name == "nt") -> Path:
    """The file that a file url names: percent-encoding is undone; drives and shares are for Windows.

    :raises BadInput: it names another machine, which only Windows reaches by a file url.
    """
    parts = urlsplit(url)
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if windows:
        if parts.netloc not in ("", "localhost"):
            return Path(f"//{parts.netloc}{path}")
        return Path(path.lstrip("/") if re.match(r"/+[A-Za-z]:", path) else path)
    if parts.netloc not in ("", "localhost"):
        raise BadInput(
            f"{url} names the machine {parts.netloc}.", fix="Mount its share, and name the folder: file:///PATH."
        )
    return Path(path)


def to_url(path: Path) -> str:
    """The file url of an absolute path, with every odd character percent-encoded.

    >>> to_url(Path("/a folder/x-1!2.conda"))
    'file:///a%20folder/x-1%212.conda'
    """
    text = path.as_posix()
    if text.startswith("//"):
        return "file:" + quote(os.fsencode(text))
    return "file://" + quote(os.fsencode(text if text.startswith("/") else f"/{text}"), safe="/:")
