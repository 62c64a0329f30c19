if [ -n "${_DSWIN_SET_USE_LIBUV:-}" ]; then
    unset USE_LIBUV _DSWIN_SET_USE_LIBUV
fi
