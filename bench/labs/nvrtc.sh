# shellcheck shell=sh
# nvrtc.sh - to be sourced: names the NVRTC that a toolkit brought along, unless CVY_NVRTC_LIB does.
if [ -z "${CVY_NVRTC_LIB:-}" ]; then
    CVY_NVRTC_LIB=$(find /usr/local/cuda*/lib64 /opt /usr/lib -name 'libnvrtc.so.1[23]' 2>/dev/null | head -n 1)
    if [ -n "$CVY_NVRTC_LIB" ]; then export CVY_NVRTC_LIB; else unset CVY_NVRTC_LIB; fi
fi
