#!/bin/sh
# Runs the command line of deepspeed-win: makes .venv with the pinned tools once, then `python -m dswin`.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
venv="$root/.venv"
stamp="$venv/installed-for"

# The first of these that is Python 3.10 to 3.12 makes the environment; DSWIN_PYTHON names another.
find_python() {
    for candidate in ${DSWIN_PYTHON:+"$DSWIN_PYTHON"} python3 python3.11 python3.12 python3.10 python; do
        if "$candidate" -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2> /dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

wanted=$(cat "$root/pyproject.toml" "$root/scripts/constraints.txt" | cksum)
if [ "$(cat "$stamp" 2> /dev/null || true)" != "$wanted" ]; then
    if ! python=$(find_python); then
        echo "error: dswin needs Python 3.10, 3.11 or 3.12 with the venv module, and found none." >&2
        echo "what to do: install one (Debian and Ubuntu: apt-get install python3-venv), or set DSWIN_PYTHON to its path." >&2
        exit 3
    fi
    echo "making .venv with $("$python" --version)" >&2
    rm -rf "$venv"
    "$python" -m venv "$venv"
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$root/scripts/constraints.txt" --editable "${root}[test]" >&2; then
        echo "error: pip could not install the tools that pyproject.toml pins; its own words are above." >&2
        echo "what to do: check the network, or pip's index and proxy settings (pip config list), and run again." >&2
        exit 3
    fi
    echo "$wanted" > "$stamp"
fi

exec "$venv/bin/python" -m dswin "$@"
