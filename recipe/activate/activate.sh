# Git Bash and MSYS2 on Windows.
if [ -z "${USE_LIBUV:-}" ]; then
    export USE_LIBUV=0
    export _DSWIN_SET_USE_LIBUV=1
fi
