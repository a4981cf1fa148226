/* How many instructions a call takes in a static program, its own wrapper included: steps through it, by the trap flag. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile long steps;

static void step(int signal)
{
    (void)signal;
    steps++;
}

#define TRAP_FLAG "0x100"
#define COUNT(name, call)                                                                  \
    do {                                                                                   \
        for (int i = 0; i < 3; i++) {                                                      \
            steps = 0;                                                                     \
            __asm__ volatile("pushfq; orq $" TRAP_FLAG ", (%%rsp); popfq" ::: "memory");   \
            call;                                                                          \
            __asm__ volatile("pushfq; andq $~" TRAP_FLAG ", (%%rsp); popfq" ::: "memory"); \
        }                                                                                  \
        printf("%s %ld\n", name, steps);                                                   \
    } while (0)

int main(void)
{
    char byte;
    int zero = open("/dev/zero", O_RDONLY);
    signal(SIGTRAP, step);
    COUNT("passes", getppid());
    COUNT("nobody's", (void)!read(zero, &byte, 1));
    COUNT("looked at", fcntl(zero, F_GETFD));
    return 0;
}
