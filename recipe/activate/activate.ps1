if (-not $Env:USE_LIBUV) {
    $Env:USE_LIBUV = "0"
    $Env:_DSWIN_SET_USE_LIBUV = "1"
}
