@echo off
:: Runs the command line of deepspeed-win: makes .venv with the pinned tools once, then `python -m dswin`.
setlocal EnableExtensions DisableDelayedExpansion
set "PYTHONUTF8=1"
set "ROOT=%~dp0.."
set "VENV=%ROOT%\.venv"
set "STAMP=%VENV%\installed-for"

:: The stamp is a copy of the two files that say what is installed.
if not exist "%STAMP%.toml" goto :make
fc /b "%ROOT%\pyproject.toml" "%STAMP%.toml" >nul 2>nul || goto :make
fc /b "%ROOT%\scripts\constraints.txt" "%STAMP%.txt" >nul 2>nul || goto :make
goto :run

:make
set "CHECK=import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))"
set "PYTHON="
if defined DSWIN_PYTHON set PYTHON="%DSWIN_PYTHON%"
if defined PYTHON goto :found
for %%p in ("py -3.11" "py -3.12" "py -3.10" "python" "python3") do (
    if not defined PYTHON %%~p -c "%CHECK%" >nul 2>nul && set "PYTHON=%%~p"
)
:found
if not defined PYTHON (
    echo error: dswin needs Python 3.10, 3.11 or 3.12, and found none. 1>&2
    echo what to do: install one from python.org or with winget, or set DSWIN_PYTHON to the path of its python.exe. 1>&2
    exit /b 3
)
echo making .venv 1>&2
if exist "%VENV%" rmdir /s /q "%VENV%" || exit /b 3
%PYTHON% -m venv "%VENV%" || exit /b 3
"%VENV%\Scripts\python.exe" -m pip install --quiet --disable-pip-version-check --constraint "%ROOT%\scripts\constraints.txt" --editable "%ROOT%[test]" || goto :failed
copy /y "%ROOT%\pyproject.toml" "%STAMP%.toml" >nul || exit /b 3
copy /y "%ROOT%\scripts\constraints.txt" "%STAMP%.txt" >nul || exit /b 3
goto :run

:failed
echo error: pip could not install the tools that pyproject.toml pins; its own words are above. 1>&2
echo what to do: check the network, or pip's index and proxy settings (pip config list), and run again. 1>&2
exit /b 3

:run
"%VENV%\Scripts\python.exe" -m dswin %*
exit /b %ERRORLEVEL%
