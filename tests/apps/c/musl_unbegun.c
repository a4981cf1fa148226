/* A program of musl's that begins without libc's start, as Go's linker makes those with cgo: no constructor is run. It sends back what comes on an
   inherited descriptor, or changes the group of all its threads, and says what that came to, and which group each has. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int changed;
static long of_thread;

static void *look(void *nothing) {
    while (!changed)
        usleep(1000);
    of_thread = syscall(SYS_getegid);
    return nothing;
}

enum { INHERITED = 50 };

static void echo(void) {
    char bytes[4096];
    ssize_t got;
    while ((got = read(INHERITED, bytes, sizeof bytes)) > 0)
        if (write(INHERITED, bytes, got) != got)
            _exit(2);
    _exit(got < 0);
}

void begin(void) {
    if (fcntl(INHERITED, F_GETFD) >= 0)
        echo();
    pthread_t thread;
    pthread_create(&thread, 0, look, 0);
    int result = setegid(1);
    changed = 1;
    pthread_join(thread, 0);
    dprintf(1, "%d %ld %ld\n", result, syscall(SYS_getegid), of_thread);
    _exit(0);
}

__asm__(".globl first\nfirst: xor %ebp, %ebp\nand $-16, %rsp\ncall begin\n");
