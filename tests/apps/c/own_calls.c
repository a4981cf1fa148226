/* A static program without libc, whose system calls and threads look as those of Go's runtime do: `own_calls PORT THREADS MESSAGES`.
   A server thread for each connection echoes; client threads compare what comes back. Connections stay until standard input ends. */
#include <linux/futex.h>
#include <netinet/in.h>
#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* What Go's linker writes. */
__asm__(".pushsection .note.go.buildid,\"a\",@note\n"
        ".long 4, 4, 4\n.byte 0x47, 0x6f, 0, 0\n.long 0\n.popsection\n");

/* internal/runtime/syscall.Syscall6 */
long ask(long number, long a, long b, long c, long d, long e, long f);
__asm__("ask: push %rbx\nmov %rdi, %rax\nmov %rsi, %rbx\nmov %rcx, %r11\nmov %rdx, %rcx\nmov %r11, %rdx\nmov %r8, %r10\nmov %r9, %r8\n"
        "mov 16(%rsp), %r9\nmov %rcx, %rsi\nmov %rbx, %rdi\nsyscall\ncmp $-4095, %rax\npop %rbx\nret");
#define CALL(number, a, b, c) ask(number, (long)(a), (long)(b), (long)(c), 0, 0, 0)

/* runtime.clone and runtime.exitThread: the new thread calls `entry(argument)` on its stack, and ends. */
void begin_thread(long flags, void *stack, void (*entry)(long), long argument);
__asm__("begin_thread: push %r12\npush %r13\nsub $0x38, %rsp\nmov %rdx, %r12\nmov %rcx, %r13\nxor %edx, %edx\nxor %r10d, %r10d\n"
        "xor %r8d, %r8d\ncall clone_it\nadd $0x38, %rsp\npop %r13\npop %r12\nret\n"
        "clone_it: mov $56, %eax\nsyscall\n.byte 0x48, 0x83, 0xf8, 0x00\nje 1f\nmov %eax, 0x30(%rsp)\nret\n"
        "1: mov %rsi, %rsp\nmov %r13, %rdi\ncall *%r12\nxor %edi, %edi\nmov $60, %eax\nsyscall\n"
        ".byte 0xcd, 0x03");

enum { STACK_LEN = 64 << 10, LEN = 64 };
static int port, messages;
static volatile int served, failed;
static int running;

static void fail(void) { failed = 1; }

static void thread(void (*entry)(long), long argument) {
    long at = ask(SYS_mmap, 0, STACK_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
    begin_thread(CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM,
                 (void *)(at + STACK_LEN), entry, argument);
}

static void done(void) {
    __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
    ask(SYS_futex, (long)&running, FUTEX_WAKE, 1 << 30, 0, 0, 0);
}

static int whole(int fd, char *bytes, int is_read) {
    for (int at = 0; at < LEN;) {
        long n = CALL(is_read ? SYS_read : SYS_write, fd, bytes + at, LEN - at);
        if (n <= 0)
            return 0;
        at += n;
    }
    return 1;
}

static void echo(long fd) {
    char bytes[LEN];
    while (whole(fd, bytes, 1) && whole(fd, bytes, 0))
        __atomic_add_fetch(&served, 1, __ATOMIC_SEQ_CST);
    CALL(SYS_close, fd, 0, 0);
    done();
}

static struct sockaddr_in place(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {__builtin_bswap32(0x7f000001)}};
    at.sin_port = __builtin_bswap16(port);
    return at;
}

static void client(long number) {
    struct sockaddr_in at = place();
    long fd = CALL(SYS_socket, AF_INET, SOCK_STREAM, 0);
    if (CALL(SYS_connect, fd, &at, sizeof at) != 0)
        fail();
    for (int n = 0; n < messages && !failed; n++) {
        char sent[LEN], got[LEN];
        for (int i = 0; i < LEN; i++)
            sent[i] = number * 31 + n * 7 + i;
        if (!whole(fd, sent, 0) || !whole(fd, got, 1))
            fail();
        for (int i = 0; i < LEN; i++)
            if (sent[i] != got[i])
                fail();
    }
    char byte;
    while (CALL(SYS_read, 0, &byte, 1) > 0)
        ;
    CALL(SYS_close, fd, 0, 0);
    done();
}

static int number(const char *text) {
    int value = 0;
    while (*text)
        value = value * 10 + *text++ - '0';
    return value;
}

void begin(long *stack) {
    char **words = (char **)(stack + 1);
    int threads = number(words[2]), one = 1;
    port = number(words[1]);
    messages = number(words[3]);
    struct sockaddr_in at = place();
    long listener = CALL(SYS_socket, AF_INET, SOCK_STREAM, 0);
    ask(SYS_setsockopt, listener, SOL_SOCKET, SO_REUSEADDR, (long)&one, sizeof one, 0);
    if (CALL(SYS_bind, listener, &at, sizeof at) != 0 || CALL(SYS_listen, listener, 128, 0) != 0)
        CALL(SYS_exit_group, 2, 0, 0);
    for (int n = 0; n < threads; n++)
        thread(client, n);
    for (int n = 0; n < threads; n++)
        thread(echo, CALL(SYS_accept, listener, 0, 0));
    for (int left; (left = __atomic_load_n(&running, __ATOMIC_SEQ_CST)) != 0;)
        ask(SYS_futex, (long)&running, FUTEX_WAIT, left, 0, 0, 0);
    int is_fine = !failed && served == threads * messages;
    CALL(SYS_write, 1, is_fine ? "echoed\n" : "failed\n", 7);
    CALL(SYS_exit_group, !is_fine, 0, 0);
}

__asm__(".globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall begin\n");
