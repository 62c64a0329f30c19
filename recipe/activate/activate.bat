@if defined USE_LIBUV goto :eof
@set "USE_LIBUV=0"
@set "_DSWIN_SET_USE_LIBUV=1"
