/* A library in the way of torsocks and its like: it stands in for socket calls, counts, and calls the next. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/types.h>

static void count(const char *name) {
    const char *path = getenv("HOOK_LOG");
    FILE *log = path ? fopen(path, "a") : NULL;
    if (!log) return;
    fprintf(log, "%s\n", name);
    fclose(log);
}

static void *next(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (!function) abort();
    return function;
}

int connect(int fd, const struct sockaddr *to, socklen_t len) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real) real = next("connect");
    if (to->sa_family == AF_INET) count("connect");
    return real(fd, to, len);
}

ssize_t send(int fd, const void *data, size_t len, int flags) {
    static ssize_t (*real)(int, const void *, size_t, int);
    if (!real) real = next("send");
    return real(fd, data, len, flags);
}

int close(int fd) {
    static int (*real)(int);
    if (!real) real = next("close");
    return real(fd);
}
