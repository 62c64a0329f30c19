@echo off
:: Starts DeepSpeed's launcher with the python of the environment this file lies in, whatever is first on PATH:
:: conda keeps python.exe above Scripts, a virtual environment inside it.
setlocal
set "DS_PYTHON=%~dp0..\python.exe"
if exist "%~dp0python.exe" set "DS_PYTHON=%~dp0python.exe"
"%DS_PYTHON%" "%~dp0ds" %*
exit /b %ERRORLEVEL%
