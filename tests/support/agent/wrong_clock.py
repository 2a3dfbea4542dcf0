"""Processes whose clock differs from the machine's: the time of day alone, as waiting goes by another one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) {
    const char *seconds = getenv("CLOCK_OFFSET");
    return seconds ? atol(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    if (!failed && clock == CLOCK_REALTIME) at->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(at, zone);
    if (!failed) at->tv_sec += offset();
    return failed;
}

time_t time(time_t *at) {
    static time_t (*real)(time_t *);
    if (!real) real = dlsym(RTLD_NEXT, "time");
    time_t now = real(NULL) + offset();
    if (at) *at = now;
    return now;
}
"""


class WrongClock:
    """A library, built in a folder, that each process loads before all others."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no cc on the PATH")
        self._library = folder / "wrong_clock.so"
        source = folder / "wrong_clock.c"
        source.write_text(SOURCE)
        command = [compiler, "-shared", "-fPIC", "-o", str(self._library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)

    def environment(self, seconds: int) -> dict[str, str]:
        """Return the environment of a process whose clock is so much ahead."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_OFFSET": str(seconds)}
