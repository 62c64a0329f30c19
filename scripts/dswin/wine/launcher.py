"""A small Windows program that starts another one and writes down its exit code.

A Linux process has one byte for it: Wine would say 5 for 0xC0000005, an access violation.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import BadInput

#: Its arguments are a file for the code and a command line, which it starts as it stands. The file is there, empty, before the
#: program is: without one, nothing was started.
SOURCE = r"""
#include <windows.h>
#include <stdio.h>

static wchar_t *skip_argument(wchar_t *at)
{
    int quoted = 0;
    for (; *at && (quoted || (*at != L' ' && *at != L'\t')); at++)
        if (*at == L'"') quoted = !quoted;
    while (*at == L' ' || *at == L'\t') at++;
    return at;
}

int wmain(int count, wchar_t **arguments)
{
    STARTUPINFOW startup = { sizeof startup };
    PROCESS_INFORMATION process;
    DWORD code = 0, error = 0;
    FILE *file;

    if (count < 3 || !(file = _wfopen(arguments[1], L"w")) || fclose(file)) return 2;
    startup.dwFlags = STARTF_USESTDHANDLES;
    startup.hStdInput = GetStdHandle(STD_INPUT_HANDLE);
    startup.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE);
    startup.hStdError = GetStdHandle(STD_ERROR_HANDLE);
    if (!CreateProcessW(NULL, skip_argument(skip_argument(GetCommandLineW())), NULL, NULL, TRUE, 0, NULL, NULL,
                        &startup, &process))
        error = GetLastError();
    else {
        WaitForSingleObject(process.hProcess, INFINITE);
        GetExitCodeProcess(process.hProcess, &code);
    }
    if (!(file = _wfopen(arguments[1], L"w"))) return 2;
    fprintf(file, error ? "error %lu" : "%lu", error ? error : code);
    return fclose(file) ? 2 : 0;
}
"""

#: Windows' numbers (winerror.h) for a program that is not there, in words.
_NOT_FOUND = {
    2: "it is not found",
    3: "its folder is not found",
    193: "it is no Windows program",
    5: "access is denied",
}


#: And for one whose process ended while Wine made it.
_STILLBORN = "error 1359"


def has_begun(file: Path) -> bool:
    """Whether the program was started, as far as the launcher's file tells."""
    return file.is_file() and file.read_text(encoding="ascii") != _STILLBORN


def read_code(file: Path, program: str) -> int | None:
    """Return the exit code that the launcher wrote, as a signed number of 32 bits, or None when Wine or the program was killed.

    :raises BadInput: the program could not be started.
    """
    text = file.read_text(encoding="ascii") if file.is_file() else ""
    if not text or text == _STILLBORN:
        return None
    if text.startswith("error "):
        number = int(text.split()[1])
        raise BadInput(
            f"Windows cannot start {program}: {_NOT_FOUND.get(number, f'error {number}')}.",
            fix="Check the program's name, and that its folder is on the PATH of the Windows side.",
        )
    code = int(text)
    return code - 2**32 if code >= 2**31 else code
