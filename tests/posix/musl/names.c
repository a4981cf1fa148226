/* Names of glibc's that the subjects call, for a program of musl's, which has none of them: musl's own functions, the system call, or
 * nothing, which is the same with the library and without. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Weak: newer versions of musl have some of them. */
#define CALL(name, arguments, plain) __attribute__((weak)) long name arguments { return plain; }

CALL(__read, (int fd, void *to, size_t len), read(fd, to, len))
CALL(__write, (int fd, const void *from, size_t len), write(fd, from, len))
CALL(__send, (int fd, const void *from, size_t len, int flags), send(fd, from, len, flags))
CALL(__connect, (int fd, const struct sockaddr *to, socklen_t len), connect(fd, to, len))
CALL(__close, (int fd), close(fd))
CALL(__dup2, (int from, int to), dup2(from, to))
CALL(__fcntl, (int fd, int command, long value), fcntl(fd, command, value))
CALL(fcntl64, (int fd, int command, long value), fcntl(fd, command, value))
CALL(__pipe, (int fds[2]), pipe(fds))
CALL(__poll, (struct pollfd *fds, nfds_t count, int ms), poll(fds, count, ms))
CALL(__poll_chk, (struct pollfd *fds, nfds_t count, int ms, size_t size), size / sizeof *fds < count ? -1 : poll(fds, count, ms))
CALL(__ppoll_chk, (struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *mask, size_t size),
     size / sizeof *fds < count ? -1 : ppoll(fds, count, time, mask))
CALL(__select, (int count, fd_set *read, fd_set *write, fd_set *except, struct timeval *time),
     select(count, read, write, except, time))
CALL(__read_chk, (int fd, void *to, size_t len, size_t size), read(fd, to, len < size ? len : size))
CALL(__recv_chk, (int fd, void *to, size_t len, size_t size, int flags), recv(fd, to, len < size ? len : size, flags))
CALL(__recvfrom_chk, (int fd, void *to, size_t len, size_t size, int flags, void *name, socklen_t *name_len),
     recvfrom(fd, to, len < size ? len : size, flags, name, name_len))
CALL(__open, (const char *path, int flags, int mode), open(path, flags, mode))
CALL(__open64, (const char *path, int flags, int mode), open(path, flags, mode))
CALL(__open_2, (const char *path, int flags), open(path, flags))
CALL(__open64_2, (const char *path, int flags), open(path, flags))
CALL(__openat_2, (int fd, const char *path, int flags), openat(fd, path, flags))
CALL(__openat64_2, (int fd, const char *path, int flags), openat(fd, path, flags))
#ifdef STATIC
/* Where these are another name of the function for the linker only. */
#undef sendfile64
#undef creat64
#undef mkstemp64
#undef mkstemps64
#undef mkostemp64
#undef mkostemps64
CALL(sendfile64, (int to, int from, off_t *at, size_t len), sendfile(to, from, at, len))
CALL(creat64, (const char *path, mode_t mode), creat(path, mode))
CALL(mkstemp64, (char *path), mkstemp(path))
CALL(mkstemps64, (char *path, int behind), mkstemps(path, behind))
CALL(mkostemp64, (char *path, int flags), mkostemp(path, flags))
CALL(mkostemps64, (char *path, int behind, int flags), mkostemps(path, behind, flags))
CALL(__fxstatat64, (int version, int fd, const char *path, struct stat *to, int flags), fstatat(fd, path, to, flags))
CALL(__fxstat64, (int version, int fd, struct stat *to), fstat(fd, to))
#endif
CALL(__fork, (void), fork())
CALL(__sigaction, (int signal, const struct sigaction *new, struct sigaction *old), sigaction(signal, new, old))
CALL(preadv2, (int fd, const struct iovec *parts, int count, off_t at, int flags),
     syscall(SYS_preadv2, fd, parts, (long)count, at, 0L, flags))
CALL(pwritev2, (int fd, const struct iovec *parts, int count, off_t at, int flags),
     syscall(SYS_pwritev2, fd, parts, (long)count, at, 0L, flags))
CALL(preadv64v2, (int fd, const struct iovec *parts, int count, off_t at, int flags), preadv2(fd, parts, count, at, flags))
CALL(pwritev64v2, (int fd, const struct iovec *parts, int count, off_t at, int flags), pwritev2(fd, parts, count, at, flags))
CALL(closefrom, (int first), syscall(SYS_close_range, first, ~0U, 0))
CALL(execveat, (int fd, const char *path, char *const argv[], char *const environment[], int flags),
     syscall(SYS_execveat, fd, path, argv, environment, flags))
CALL(pidfd_open, (int pid, unsigned flags), syscall(SYS_pidfd_open, pid, flags))
CALL(pidfd_getfd, (int pidfd, int fd, unsigned flags), syscall(SYS_pidfd_getfd, pidfd, fd, flags))
CALL(fsopen, (const char *name, unsigned flags), syscall(SYS_fsopen, name, flags))
CALL(fsconfig, (int fd, unsigned command, const char *key, const void *value, int aux),
     syscall(SYS_fsconfig, fd, command, key, value, aux))
CALL(fsmount, (int fd, unsigned flags, unsigned attributes), syscall(SYS_fsmount, fd, flags, attributes))
CALL(fspick, (int fd, const char *path, unsigned flags), syscall(SYS_fspick, fd, path, flags))
CALL(open_tree, (int fd, const char *path, unsigned flags), syscall(SYS_open_tree, fd, path, flags))
CALL(getpt, (void), open("/dev/ptmx", O_RDWR))
CALL(statx, (int fd, const char *path, int flags, unsigned mask, void *to), syscall(SYS_statx, fd, path, flags, mask, to))
CALL(bindresvport, (int fd, void *name), -1)
/* Its caller, libgcc, then asks dl_iterate_phdr(3). */
CALL(_dl_find_object, (void *address, void *found), -1)

FILE *_IO_fdopen(int fd, const char *mode) { return fdopen(fd, mode); }
int __vdprintf_chk(int fd, int flag, const char *format, va_list list) { return vdprintf(fd, format, list); }
int __dprintf_chk(int fd, int flag, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int length = vdprintf(fd, format, list);
    va_end(list);
    return length;
}

void (*ssignal(int number, void (*handler)(int)))(int) { return signal(number, handler); }
void (*sysv_signal(int number, void (*handler)(int)))(int)
{
    struct sigaction new = { .sa_handler = handler, .sa_flags = SA_RESETHAND | SA_NODEFER }, old;
    return sigaction(number, &new, &old) ? SIG_ERR : old.sa_handler;
}

/* A jump: neither may have a frame of its own. */
__asm__(".globl __vfork\n__vfork: jmp vfork@plt\n");
#ifndef STATIC
__asm__(".globl __clone\n__clone: jmp clone@plt\n");
#endif
