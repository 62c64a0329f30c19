if ($Env:_DSWIN_SET_USE_LIBUV) {
    Remove-Item Env:USE_LIBUV, Env:_DSWIN_SET_USE_LIBUV
}
