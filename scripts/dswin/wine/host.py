"""A Windows machine on Linux: programs run in one Wine prefix, with Microsoft's compiler on their PATH."""

from __future__ import annotations

import codecs
import contextlib
import os
import shutil
import signal
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .. import mutex
from ..errors import CheckFailed, DswinError, MachineLacks
from . import launcher, paths, prefix
from .msvc import Msvc
from .prefix import Progress, Wine

#: How long Wine may take, in seconds, for what takes it 1 to 10 on an idle machine.
_PATIENCE = 300.0
#: How long output is awaited, in seconds, after its program ended; one that it left behind may hold the pipe for ever.
_LAST_OUTPUT = 5.0
#: How often a program is started anew when Wine ended before it had begun.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Finished:
    """A Windows program that came to its end.

    :param code: its exit code as a signed number of 32 bits, as ``%ERRORLEVEL%`` shows it: a crash is negative.
    :param output: what it wrote to stdout and stderr, read as UTF-8, lines ended by a newline only.
    """

    code: int
    output: str


class Host:
    """The prefix while it is open. Get one from :func:`open_host`."""

    def __init__(self, wine: Wine, folder: Path, msvc: Msvc) -> None:
        self.wine = wine
        self.msvc = msvc
        self.prefix = folder
        self.drives = prefix.list_drives(folder)
        self.environment = prefix.write_environment(wine, folder, msvc)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._ended = 0  # how often programs were ended from here

    def to_windows(self, path: Path) -> str:
        """Return the name that Windows programs here know a path by. :raises BadInput: it can have none."""
        return paths.to_windows(path, self.drives)

    def to_linux(self, text: str) -> Path:
        """Return where a path of a Windows program here is on this machine. :raises BadInput: nowhere."""
        return paths.to_linux(text, self.drives)

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        log: Path | None = None,
    ) -> Finished:
        """Run a Windows program to its end.

        :param command: the program and its arguments. A ``Path`` is handed over by its Windows name, text as it is. A
            program without a folder is looked for on the Windows PATH, which starts with MSVC's programs.
        :param cwd: the folder to run in.
        :param env: variables beside :attr:`environment`; nothing of this process's own is passed on. ``WINEPATH`` holds
            what the Windows PATH starts with.
        :param timeout: seconds after which it, and everything else that runs in the prefix, is ended.
        :param log: a file that the output is also appended to, while it comes.
        :raises BadInput: there is no such program.
        :raises CheckFailed: the time was over, or the program was killed from outside.
        """
        words = [self.to_windows(one) if isinstance(one, Path) else one for one in command]
        self.start()
        code_file = self.prefix / "drive_c" / "dswin" / f"{uuid.uuid4().hex}.code"
        start = [self.to_windows(self._launcher), self.to_windows(code_file), *words]
        ended = self._ended
        try:
            for _ in range(_ATTEMPTS):
                wine_code, output = self._spawn(start, cwd, env or {}, timeout, log)
                # Where its layout of memory is not fixed, Wine now and then stops while it starts. Once the program has begun,
                # only its caller knows whether it may run twice; and what another thread has ended stays ended.
                if launcher.has_begun(code_file) or self._ended != ended:
                    break
            code = launcher.read_code(code_file, words[0])
        finally:
            code_file.unlink(missing_ok=True)
        if code is None:
            raise CheckFailed(
                f"{words[0]} was killed, or Wine itself stopped ({_describe(wine_code)}).",
                fix="Look for a shortage of memory (dmesg), and run again.",
                log=_tail(output),
            )
        return Finished(code, output)

    def check(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        log: Path | None = None,
    ) -> str:
        """Run a program as :meth:`run` does and return its output.

        :raises CheckFailed: its exit code is not 0.
        """
        done = self.run(command, cwd=cwd, env=env, timeout=timeout, log=log)
        if done.code:
            raise CheckFailed(
                f"{Path(command[0]).name} ended with exit code {done.code}.",
                fix=f"The whole log is {log}." if log else "See what it says below.",
                log=_tail(done.output),
            )
        return done.output

    def end_programs(self) -> None:
        """End every program of the prefix, and Wine's own ones; the next run starts these again."""
        self._ended += 1
        subprocess.run(
            [self.wine.server, "-k"],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if self._keeper:
            self._keeper.kill()
            self._keeper.wait()
            if self._keeper.stdin:
                with contextlib.suppress(BrokenPipeError):
                    self._keeper.stdin.close()
            self._keeper = None

    @property
    def _launcher(self) -> Path:
        return self.prefix / "drive_c" / "dswin" / "launch.exe"

    def start(self) -> None:
        """Start Wine's services without a pipe of ours, which they would inherit and keep open.

        :meth:`run` does so by itself; whoever starts programs with :attr:`environment` in another way calls this before.
        """
        with self._starting:
            if self._keeper and self._keeper.poll() is None:
                return
            # The services end with the last program. This one reads commands that never come, and ends when this process
            # does, however it does: then nothing of Wine is left over.
            self._keeper = subprocess.Popen(
                [*self.wine.command, "cmd.exe"],
                env=self.environment,
                cwd=self.prefix,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            # wmic, which py-cpuinfo asks, has more of them started.
            self._run_quietly("wmic.exe", "os", "get", "Version")

    def _run_quietly(self, *command: str) -> int:
        """Run a program that has no output to read, as the first of a prefix must be run."""
        try:
            return subprocess.run(
                [*self.wine.command, *command],
                env=self.environment,
                cwd=self.prefix,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                timeout=_PATIENCE,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired as error:
            self.end_programs()
            raise MachineLacks(
                f"Wine did not start within {_PATIENCE:.0f} s.",
                fix="End what else runs on this machine, and run again.",
            ) from error
        except BaseException:
            self.end_programs()
            raise

    def _spawn(
        self, words: list[str], cwd: Path | None, env: Mapping[str, str], timeout: float | None, log: Path | None
    ) -> tuple[int, str]:
        """Run a program with its output in a pipe: Wine 8 has no name for a Linux file that a program inherits, and
        Python then stops with "can't initialize sys standard streams".
        """
        process = subprocess.Popen(
            [*self.wine.command, *words],
            env={**self.environment, **env},
            cwd=cwd or self.prefix,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        output: list[str] = []
        reader = threading.Thread(target=_collect, args=(process.stdout, output, log), daemon=True)
        reader.start()
        try:
            code = process.wait(timeout)
            reader.join(_LAST_OUTPUT)
        except subprocess.TimeoutExpired as error:
            self._end(process)
            reader.join(_LAST_OUTPUT)
            raise CheckFailed(
                f"{words[2] if len(words) > 2 else words[0]} did not end within {timeout:g} s, and was ended.",
                fix="Allow it more time, or see from its last words what it waited for.",
                log=_tail("".join(output)),
            ) from error
        except BaseException:
            self._end(process)
            raise
        return code, "".join(output)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        self.end_programs()
        process.kill()
        process.wait()


def _collect(pipe: IO[bytes], output: list[str], log: Path | None) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with pipe, open(log or os.devnull, "a", encoding="utf-8", newline="\n") as file:
        while chunk := os.read(pipe.fileno(), 65536):
            # Each \r by itself: its \n may come with the next chunk.
            text = decoder.decode(chunk).replace("\r", "")
            output.append(text)
            file.write(text)
            file.flush()


def _describe(code: int) -> str:
    """How a process of Linux ended, in words. :param code: as subprocess has it: negative for a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code}, {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _tail(output: str, count: int = 40) -> str:
    return "\n".join(output.strip().splitlines()[-count:])


@contextmanager
def open_host(cache: Path, msvc: Msvc, progress: Progress = lambda _: None) -> Iterator[Host]:
    """Open the prefix in ``cache``, made now if it is not there or its Wine is another one; close it afterwards.

    When it is closed nothing of it runs any more. A second process waits until the first has closed it.

    :param cache: a folder for the prefix and what Wine lacks; may be deleted at any time.
    :raises MachineLacks: no Wine, or one that cannot be completed.
    """
    wine = prefix.find_wine()
    cache = cache.absolute()
    cache.mkdir(parents=True, exist_ok=True)
    with mutex.hold(cache, f"waiting for another process that uses the Wine prefix in {cache}", progress):
        parts = prefix.fetch_parts(wine, cache / "parts", progress)
        host = Host(wine, cache / "prefix", msvc)
        try:
            # Whoever holds the lock is alone: what runs here was left over by a process that was killed.
            if host.prefix.is_dir():
                host.end_programs()
            inputs = prefix.describe(wine, parts, launcher.SOURCE)
            if not prefix.is_made(host.prefix, inputs):
                progress(f"making a Wine prefix ({wine.version})")
                _make(host, parts)
                prefix.mark_made(host.prefix, inputs)
            yield host
        finally:
            host.end_programs()


def _make(host: Host, parts: Mapping[str, Path]) -> None:
    shutil.rmtree(host.prefix, ignore_errors=True)
    tools = host.prefix / "drive_c" / "dswin"
    tools.mkdir(parents=True)
    Path(host.environment["HOME"]).mkdir(exist_ok=True)
    host._run_quietly("wineboot.exe", "-i")
    system = host.prefix / "drive_c" / "windows" / "system32"
    if not (system / "kernel32.dll").is_file():
        raise MachineLacks(
            "Wine made no Windows folder.",
            fix="Check that Wine works (wine64 wineboot -i), and that the disk has space.",
        )
    for name, file in parts.items():
        shutil.copyfile(file, system / name)
    # A crash shall end its program at once: winedbg would keep the program's pipes open.
    debugger = r"HKLM\Software\Microsoft\Windows NT\CurrentVersion\AeDebug"
    host._run_quietly("reg.exe", "add", debugger, "/v", "Debugger", "/t", "REG_SZ", "/d", "false", "/f")
    (tools / "launch.c").write_text(launcher.SOURCE, encoding="ascii")
    host.start()
    code, output = host._spawn(["cl.exe", "/nologo", "/O1", "/MT", "launch.c"], tools, {}, _PATIENCE, None)
    if code or not host._launcher.is_file():
        raise DswinError(
            f"The compiler of {host.msvc.root} does not work under {host.wine.version}.",
            fix="See its words below; compare with MSVC 14.44 and Wine 8, which are known to work together.",
            log=_tail(output),
        )
