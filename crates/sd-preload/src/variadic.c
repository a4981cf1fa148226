/* The hooked functions with `...` in their signature: stable Rust can call such functions, not define them.
 *
 * Each only turns its arguments into an array or a va_list and calls the plain function beside it, which is a hook
 * of src/table.rs; the exported names (dprintf, execl, ...) are jumps to these, written by the same table. Like
 * glibc's own, they allocate nothing: execl and friends are async-signal-safe.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <unistd.h>

int vdprintf(int fd, const char *format, va_list arguments);
int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments);

int sd_dprintf(int fd, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vdprintf(fd, format, arguments);
    va_end(arguments);
    return length;
}

int sd_dprintf_chk(int fd, int flag, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = __vdprintf_chk(fd, flag, format, arguments);
    va_end(arguments);
    return length;
}

/* The number of arguments from `first` to the null pointer that ends them, which is not counted. */
#define COUNT(first, count)                                  \
    do {                                                     \
        va_list list;                                        \
        va_start(list, first);                               \
        for (count = (first) ? 1 : 0; count; count++)        \
            if (!va_arg(list, char *))                       \
                break;                                       \
        va_end(list);                                        \
    } while (0)

/* Fills `argv` with `first`, `count - 1` further arguments and the null pointer; `list` then stands behind it. */
#define COLLECT(first, count, argv, list)                    \
    do {                                                     \
        va_start(list, first);                               \
        argv[0] = (char *)(first);                           \
        for (size_t i = 1; i <= (count); i++)                \
            argv[i] = va_arg(list, char *);                  \
    } while (0)

int sd_execl(const char *path, const char *first, ...)
{
    va_list list;
    size_t count;
    COUNT(first, count);
    char *argv[count + 1];
    COLLECT(first, count, argv, list);
    va_end(list);
    return execv(path, argv);
}

int sd_execlp(const char *file, const char *first, ...)
{
    va_list list;
    size_t count;
    COUNT(first, count);
    char *argv[count + 1];
    COLLECT(first, count, argv, list);
    va_end(list);
    return execvp(file, argv);
}

int sd_execle(const char *path, const char *first, ...)
{
    va_list list;
    size_t count;
    COUNT(first, count);
    char *argv[count + 1];
    COLLECT(first, count, argv, list);
    char **environment = va_arg(list, char **);
    va_end(list);
    return execve(path, argv, environment);
}
