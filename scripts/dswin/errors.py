"""Every way that dswin can fail: one exit code each, what is wrong, and what to do next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar


class DswinError(Exception):
    """A failure that a user can act on.

    The command line prints it without a traceback and exits with ``exit_code``.

    :param what: one sentence that says what is wrong, and where.
    :param fix: one or two sentences that say what to do next.
    :param log: the last lines of a program's output that explain the failure, if there is any.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, fix: str, log: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix
        self.log = log


class CheckFailed(DswinError):
    """The work was done and its result is not what it must be."""

    exit_code = 1


class BadInput(DswinError):
    """An argument, a file or a folder is not what the command needs."""

    exit_code = 2


class MachineLacks(DswinError):
    """This machine lacks a program, a library, space or a network."""

    exit_code = 3


#: Exit code of a run that the user stopped with Ctrl-C.
INTERRUPTED = 130


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give an error of the system that names no file, as that of a full disk, the name of the one that is being written."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise


def show_text(text: str) -> str:
    """A text from a file or a command without what a terminal obeys.

    >>> show_text("a" + chr(27) + "b")
    'a\\\\x1bb'
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
