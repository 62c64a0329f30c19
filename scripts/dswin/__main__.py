"""``python -m dswin``: the command line with outputs that may be closed, full, or unable to show a letter."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

#: How a pipe says that nobody reads it any more.
_CLOSED = (errno.EPIPE, errno.EINVAL) if os.name == "nt" else (errno.EPIPE,)


class Output(io.FileIO):
    """What nobody reads any more, as in ``dswin ... | head -1``, is dropped: the work goes on to its end and its exit code."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _CLOSED:
                raise
            return memoryview(data).nbytes


def wrap(stream: TextIO) -> TextIO:
    """Return a stream to the same file or pipe; a Windows console stays what it is. A letter it cannot show becomes a number."""
    buffer = getattr(stream, "buffer", None)
    if not isinstance(stream, io.TextIOWrapper) or not isinstance(getattr(buffer, "raw", buffer), io.FileIO):
        with suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[attr-defined]
        return stream
    raw = Output(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, "backslashreplace", line_buffering=stream.line_buffering
    )


def run() -> None:
    """Run the command line and end the process with its exit code."""
    # Streams that were closed at the start (>&-) are nothing at all; the first file that is opened would take their numbers.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    sys.stdout = wrap(sys.stdout) if sys.stdout else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = wrap(sys.stderr) if sys.stderr else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        from .cli import main

        code = main()
    except KeyboardInterrupt:  # while it is imported
        code = 130
    except OSError:  # standard error cannot be written
        code = 3
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a full disk was told of before
            stream.flush()
    # py-rattler can crash while the interpreter ends, after the work is done.
    os._exit(code)


if __name__ == "__main__":
    run()
