#!/usr/bin/env bash
# Compiles DeepSpeed's ops ahead of time and installs it into $PREFIX (Linux). bld.bat is its twin for Windows.
set -euo pipefail

case "${ds_variant:-}" in
    cpu) export DS_ACCELERATOR=cpu ;;
    cuda121 | cuda130) export DS_ACCELERATOR=cuda ;;
    *)
        echo "ERROR: ds_variant is '${ds_variant:-}'; build.sh knows cpu, cuda121 and cuda130." >&2
        echo "       A new variant needs a row in conda_build_config.yaml, its requirements in recipe.yaml, and a case here." >&2
        exit 1
        ;;
esac

# ---- What is compiled: ops.yaml says why. check_ops.py holds the result to it at the end.
export DS_BUILD_OPS=0
export DS_BUILD_FUSED_ADAM=1
export DS_BUILD_FUSED_LAMB=1
export DS_BUILD_FUSED_LION=1
export DS_BUILD_CPU_ADAM=1
export DS_BUILD_CPU_ADAGRAD=1
export DS_BUILD_CPU_LION=1
export DS_BUILD_UTILS=1
export DS_BUILD_RANDOM_LTD=1
export DS_BUILD_QUANTIZER=1
export DS_BUILD_TRANSFORMER=1
export DS_BUILD_STOCHASTIC_TRANSFORMER=1
export DS_BUILD_TRANSFORMER_INFERENCE=1
export DS_BUILD_INFERENCE_CORE_OPS=1
export DS_BUILD_RAGGED_OPS=1
export DS_BUILD_SPATIAL_INFERENCE=1
export DS_BUILD_PIN_MEMORY=1
export DS_BUILD_SHM_COMM=1
export DS_BUILD_AIO=0
export DS_BUILD_GDS=0
export DS_BUILD_CUTLASS_OPS=0
export DS_BUILD_RAGGED_DEVICE_OPS=0
export DS_BUILD_EVOFORMER_ATTN=0
export DS_BUILD_FP_QUANTIZER=0
export DS_BUILD_DEEP_COMPILE=0
export DS_BUILD_CCL_COMM=0
export DS_BUILD_NOT_IMPLEMENTED=0

# ---- How: the instruction set of every x86-64 desktop since 2013, not that of this machine.
export DS_BUILD_SIMD=avx2
export DS_ENABLE_NINJA=1
# The ops are compiled with OpenMP and not linked to a runtime: their symbols are resolved at load by the one that torch
# brings, so that there is one in the process.

# ---- The same bytes from the same inputs: times (the day of the sdist; rattler-build has set the time of the build), the
# order of sets, paths.
export SOURCE_DATE_EPOCH=1792454400
export PYTHONHASHSEED=0
# Or Python leaves .pyc files of its own library in the host environment, and conda-build packs them as ours.
export PYTHONDONTWRITEBYTECODE=1
# A hash of what is linked, the folder of the build among it, and that folder as the place of libraries: where they are in an
# environment, from an op in deepspeed/ops/NAME, is the same everywhere. torch has loaded all of them before an op is.
LDFLAGS="${LDFLAGS:-}"
export LDFLAGS="${LDFLAGS//-Wl,-rpath,${PREFIX}\/lib/} -Wl,--build-id=none -Wl,-rpath,\\\$ORIGIN/../../../../.."
# torch's headers put __FILE__ into every check. Patch 0008 hands this to the compiler and, by way of nvcc, to the preprocessor of
# GPU code, which reads no CFLAGS.
export DS_HOST_FLAGS="-ffile-prefix-map=${SRC_DIR}=deepspeed;-ffile-prefix-map=${PREFIX}=prefix"

# A compiler cache, where a program of this name is on PATH; `dswin build` puts one there. A plain build has none. It stands
# in a script of the compiler's own name, since torch looks at that name and asks the compiler for its version.
if command -v dswin-compiler-cache > /dev/null; then
    mkdir cached
    printf '#!/bin/sh\nexec dswin-compiler-cache "%s" "$@"\n' "${CXX}" > "cached/$(basename "${CXX}")"
    chmod +x cached/*
    CXX="${SRC_DIR}/cached/$(basename "${CXX}")"
    export CXX
fi

"${PYTHON}" "${RECIPE_DIR}/jobs.py" > jobs.env
# shellcheck disable=SC1091
source jobs.env

if [[ "${DS_ACCELERATOR}" == cuda ]]; then
    "${PYTHON}" "${RECIPE_DIR}/cuda_home.py" --into "${SRC_DIR}/cuda_home"
    export CUDA_HOME="${SRC_DIR}/cuda_home"
    export CUDA_PATH="${CUDA_HOME}"
fi

# Upstream ships its op sources and builders a second time inside the package, for ops that are built on demand.
for folder in csrc op_builder; do
    rm -rf "deepspeed/ops/${folder}"
    cp -R "${folder}" "deepspeed/ops/${folder}"
done
"${PYTHON}" "${RECIPE_DIR}/pin_torch.py" requirements/requirements.txt

# A wheel first, for people who use pip; installing from a folder of wheels leaves no direct_url.json with our path in it.
"${PYTHON}" -m pip wheel . --no-deps --no-build-isolation --no-index --no-cache-dir --wheel-dir dist -v
"${PYTHON}" -m pip install deepspeed --no-deps --no-index --find-links dist --no-compile -v
# .pyc files that are checked by the hash of their source, with short paths: neither the time nor the place of this build is
# in them.
"${PYTHON}" -m compileall -q -j 0 --invalidation-mode checked-hash -s "${PREFIX}" "${SP_DIR}/deepspeed"

# The package's tests come with it: whoever installed it can run them.
mkdir -p "${PREFIX}/share/deepspeed-win"
cp "${RECIPE_DIR}/ops.yaml" "${RECIPE_DIR}/tests/check_ops.py" "${RECIPE_DIR}/tests/train.py" "${PREFIX}/share/deepspeed-win/"

"${PYTHON}" "${RECIPE_DIR}/tests/check_ops.py" --accelerator "${DS_ACCELERATOR}" --ops "${RECIPE_DIR}/ops.yaml" --installed-in "${SP_DIR}"
