/* Stands in for the library: checks what it is given, says one line, and begins the program. */
#include <elf.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static long call(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
}

static long say(const char *text, long len) { return call(SYS_write, 1, (long)text, len, 0); }
#define SAY(text) say(text, sizeof text - 1)

/* A segment with bytes in the file, and more of them that are zero: in the rest of the last page, and in pages of their own. */
static volatile int told = 11;
static volatile char nothing[3 * 4096 + 100];

/* Returns where the program begins. */
unsigned long begin(long tracer, unsigned char *base, unsigned long len, long *stack) {
    int is_clear = 1;
    for (unsigned long n = 0; n < sizeof nothing; n++)
        is_clear &= nothing[n] == 0;
    nothing[sizeof nothing - 1] = 1;
    int is_mapped = told == 11 && base[0] == 0x7f && (unsigned long)begin - (unsigned long)base < len;
    long ended = call(SYS_wait4, tracer, 0, __WALL, 0);
    if (!is_clear || !is_mapped || len % 4096 != 0)
        SAY("library: badly mapped\n");
    else if (ended == tracer)
        SAY("library: tracer has ended\n");
    else if (ended == -10)
        SAY("library: tracer has gone\n");
    else
        SAY("library: no tracer\n");
    long *at = stack + *stack + 2;
    while (*at++)
        ;
    for (; at[0] != AT_NULL; at += 2)
        if (at[0] == AT_ENTRY)
            return at[1];
    return 0;
}

__asm__(".globl _start\n"
        "_start: mov %rsp, %rbx\n"
        "mov %rsp, %rcx\n"
        "and $-16, %rsp\n"
        "call begin\n"
        "mov %rbx, %rsp\n"
        "xor %edx, %edx\n"
        "jmp *%rax\n");
