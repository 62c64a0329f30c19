"""Users' passwords and tokens for channels that ask for one: read where the user keeps them, written nowhere."""

from __future__ import annotations

import os
import re

import requests
from requests.auth import AuthBase, HTTPBasicAuth

#: The service under which a keyring is asked; the user name there is the host.
SERVICE = "dswin"


def variable_of(host: str) -> str:
    """The environment variable that may hold a login for a host.

    >>> variable_of("conda.example.com")
    'DSWIN_LOGIN_CONDA_EXAMPLE_COM'
    """
    return "DSWIN_LOGIN_" + re.sub(r"\W", "_", host).upper()


class _Bearer(AuthBase):
    def __init__(self, token: str) -> None:
        self.token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self.token}"
        return request


def find(host: str) -> AuthBase | None:
    """The login for a host from the environment variable; nothing where it is not set.

    ``user:password`` is basic authentication; a text without a colon is a bearer token. A netrc file is read by requests itself.
    """
    return _parse(os.environ.get(variable_of(host)))


def find_in_keyring(host: str) -> AuthBase | None:
    """The login for a host from the keyring, where there is one. Takes seconds: to be asked once a host has refused."""
    return _parse(_ask_keyring(host))


def _parse(secret: str | None) -> AuthBase | None:
    if not secret:
        return None
    user, colon, password = secret.partition(":")
    return HTTPBasicAuth(user, password) if colon else _Bearer(secret)


def _ask_keyring(host: str) -> str | None:
    try:
        import keyring
    except ImportError:
        return None
    try:
        return keyring.get_password(SERVICE, host)
    except Exception:  # each back-end raises its own; a locked or absent keyring holds nothing for us
        return None
