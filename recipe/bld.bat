:: Compiles DeepSpeed's ops ahead of time and installs it into %PREFIX% (Windows). build.sh is its twin for Linux.
::
:: Every command that can fail ends in "|| exit /b 1", which sees negative exit codes too (a crashed compiler's) and works
:: where it stands; a test checks that, and that no %ERRORLEVEL% is read inside parentheses.
@echo on
setlocal EnableExtensions DisableDelayedExpansion

if "%ds_variant%"=="cpu" set "DS_ACCELERATOR=cpu"
if "%ds_variant%"=="cuda121" set "DS_ACCELERATOR=cuda"
if "%ds_variant%"=="cuda130" set "DS_ACCELERATOR=cuda"
if not defined DS_ACCELERATOR (
    echo ERROR: ds_variant is "%ds_variant%"; bld.bat knows cpu, cuda121 and cuda130.
    echo        A new variant needs a row in conda_build_config.yaml, its requirements in recipe.yaml, and a line here.
    exit /b 1
)

:: ---- What is compiled: ops.yaml says why. check_ops.py holds the result to it at the end.
set "DS_BUILD_OPS=0"
set "DS_BUILD_FUSED_ADAM=1"
set "DS_BUILD_FUSED_LAMB=1"
set "DS_BUILD_FUSED_LION=1"
set "DS_BUILD_CPU_ADAM=1"
set "DS_BUILD_CPU_ADAGRAD=1"
set "DS_BUILD_CPU_LION=1"
set "DS_BUILD_UTILS=1"
set "DS_BUILD_RANDOM_LTD=1"
set "DS_BUILD_QUANTIZER=1"
set "DS_BUILD_TRANSFORMER=1"
set "DS_BUILD_STOCHASTIC_TRANSFORMER=1"
set "DS_BUILD_TRANSFORMER_INFERENCE=1"
set "DS_BUILD_INFERENCE_CORE_OPS=1"
set "DS_BUILD_RAGGED_OPS=1"
set "DS_BUILD_SPATIAL_INFERENCE=1"
set "DS_BUILD_PIN_MEMORY=0"
set "DS_BUILD_SHM_COMM=0"
set "DS_BUILD_AIO=0"
set "DS_BUILD_GDS=0"
set "DS_BUILD_CUTLASS_OPS=0"
set "DS_BUILD_RAGGED_DEVICE_OPS=0"
set "DS_BUILD_EVOFORMER_ATTN=0"
set "DS_BUILD_FP_QUANTIZER=0"
set "DS_BUILD_DEEP_COMPILE=0"
set "DS_BUILD_CCL_COMM=0"
set "DS_BUILD_NOT_IMPLEMENTED=0"

:: ---- How: the instruction set of every x86-64 desktop since 2013, not that of this machine.
set "DS_BUILD_SIMD=avx2"
set "DS_ENABLE_NINJA=1"
:: No folder of this machine in the ops, and no second code generation at each link: patch 0008.
set "DS_HOST_FLAGS=/GL-;/d1trimfile:%PREFIX%\;/d1trimfile:%SRC_DIR%\"
:: torch's BuildExtension stops where the VC environment is active and this is not set.
set "DISTUTILS_USE_SDK=1"
set "MSSdk=1"
:: Messages in English, whatever Windows speaks; Python reads and writes UTF-8, whatever the console does.
set "VSLANG=1033"
set "PYTHONUTF8=1"

:: ---- The same bytes from the same inputs: times (the day of the sdist), the order of sets, the linker's stamps.
set "SOURCE_DATE_EPOCH=1792454400"
set "PYTHONHASHSEED=0"
:: Or Python leaves .pyc files of its own library in the host environment, and conda-build packs them as ours.
set "PYTHONDONTWRITEBYTECODE=1"

"%PYTHON%" "%RECIPE_DIR%\toolset.py" || exit /b 1

"%PYTHON%" "%RECIPE_DIR%\jobs.py" > jobs.bat || exit /b 1
call jobs.bat || exit /b 1

:: One OpenMP runtime in the process: the one that torch loads. LINK is read by link.exe before its command line.
"%PYTHON%" "%RECIPE_DIR%\openmp_library.py" --into "%SRC_DIR%\openmp" || exit /b 1
set "LIB=%SRC_DIR%\openmp;%LIB%"
set "LINK=/NODEFAULTLIB:LIBOMP /Brepro dswin_openmp.lib"

if "%DS_ACCELERATOR%"=="cpu" goto :compile
"%PYTHON%" "%RECIPE_DIR%\cuda_home.py" --into "%SRC_DIR%\cuda_home" || exit /b 1
set "CUDA_HOME=%SRC_DIR%\cuda_home"
set "CUDA_PATH=%SRC_DIR%\cuda_home"
set "PATH=%SRC_DIR%\cuda_home\bin;%PATH%"

:compile
:: dswin's compiler cache, where it is on PATH: what was compiled before from the same files is not compiled again.
for %%p in (dswin-compiler-cache.bat) do if not "%%~$PATH:p"=="" call "%%~$PATH:p" || exit /b 1

"%PYTHON%" "%RECIPE_DIR%\pin_torch.py" requirements\requirements.txt || exit /b 1

:: A wheel first, for people who use pip; installing from a folder of wheels leaves no direct_url.json with our path in it.
"%PYTHON%" -m pip wheel . --no-deps --no-build-isolation --no-index --no-cache-dir --wheel-dir dist -v || exit /b 1
"%PYTHON%" -m pip install deepspeed --no-deps --no-index --find-links dist --no-compile -v || exit /b 1
:: .pyc files that are checked by the hash of their source, with short paths: neither the time nor the place of this build is
:: in them.
"%PYTHON%" -m compileall -q --invalidation-mode checked-hash -s "%PREFIX%" "%SP_DIR%\deepspeed" || exit /b 1

:: The package's tests come with it: whoever installed it can run them.
if not exist "%PREFIX%\share\deepspeed-win" mkdir "%PREFIX%\share\deepspeed-win" || exit /b 1
for %%f in (ops.yaml tests\check_ops.py tests\train.py) do copy /y "%RECIPE_DIR%\%%f" "%PREFIX%\share\deepspeed-win\%%~nxf" || exit /b 1

:: torch 2.4 to 2.7 for Windows is built without libuv and asks for it. Patch 0005 covers every python that imports
:: DeepSpeed; these scripts cover torchrun, which does not.
if "%ds_variant%"=="cuda130" goto :check
for %%k in (activate deactivate) do (
    if not exist "%PREFIX%\etc\conda\%%k.d" mkdir "%PREFIX%\etc\conda\%%k.d" || exit /b 1
    for %%x in (bat ps1 sh) do (
        copy /y "%RECIPE_DIR%\activate\%%k.%%x" "%PREFIX%\etc\conda\%%k.d\deepspeed-win_%%k.%%x" || exit /b 1
    )
)

:check
"%PYTHON%" "%RECIPE_DIR%\tests\check_ops.py" --accelerator "%DS_ACCELERATOR%" --ops "%RECIPE_DIR%\ops.yaml" --installed-in "%SP_DIR%" || exit /b 1
