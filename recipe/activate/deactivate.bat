@if not defined _DSWIN_SET_USE_LIBUV goto :eof
@set "USE_LIBUV="
@set "_DSWIN_SET_USE_LIBUV="
