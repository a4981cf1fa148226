/* Says what a program learns of its own file and of its start. The last line is of the program that it executes by its own name. */
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

static int zeros[100000], ones[1000] = { 1 };

static void link_of(const char *name)
{
    char text[4096];
    ssize_t len = readlink(name, text, sizeof text - 1);
    printf("%s\n", len < 0 ? "no link" : (text[len] = 0, text));
}

int main(int count, char **words)
{
    char name[64], comm[16], start[4] = "";
    struct stat file, other;
    const ElfW(Phdr) *headers = (void *)getauxval(AT_PHDR);
    int loads = 0;
    link_of("/proc/self/exe");
    snprintf(name, sizeof name, "/proc/%d/exe", getpid());
    link_of(name);
    link_of("/proc/self/exe/");
    link_of("/proc/self/exes");
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    printf("descriptor %d: %zd of %.3s\n", fd, read(fd, start, 4), start + 1);
    close(fd);
    if (!stat("/proc/self/exe", &file) && !stat(words[1], &other))
        printf("same file: %d\n", file.st_dev == other.st_dev && file.st_ino == other.st_ino);
    printf("%d %d\n", access("/proc/self/exe", X_OK), access("/proc/thread-self/exe", W_OK));
    printf("%d %d\n", open((char *)16, O_RDONLY), access("/nonexistent", F_OK));
    prctl(PR_GET_NAME, comm);
    for (unsigned long n = 0; n < getauxval(AT_PHNUM); n++)
        loads += headers[n].p_type == PT_LOAD;
    printf("%s: %d words, %s; %d segments; %d %d %d %s\n", comm, count, words[0], loads, zeros[99999], ones[0], ones[999],
           getenv("A_VARIABLE"));
    memset(malloc(1 << 20), 1, 1 << 20);
    fflush(stdout);
    if (count == 2)
        execl("/proc/self/exe", "exe", words[1], "again", (char *)0);
    return 7;
}
