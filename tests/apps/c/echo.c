/* A small echo server and client, to be built in every way that a C program can be built.
 *
 * usage: echo serve PORT                 until SIGTERM; a thread for each connection
 *        echo connect PORT               four connections at once, data of many sizes, compared
 *        echo namespace PORT LIBRARY     connects here, and by this code in a second copy of libc (dlmopen)
 *        echo churn PORT COUNT           so many connections one after the other, in epoll instances of their own
 *        echo inside PORT                serves, and connects to itself; for places that nobody else reaches
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS = 4, SIZES = 6, SIZE_MAX_BYTES = 70000 };
static const int sizes[SIZES] = {1, 10, 100, 1000, 20000, SIZE_MAX_BYTES};

static void die(const char *what) {
    perror(what);
    _exit(1);
}

static struct sockaddr_in address(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return to;
}

static int send_all(int fd, const char *data, int len) {
    while (len > 0) {
        ssize_t sent = send(fd, data, len, MSG_NOSIGNAL);
        if (sent <= 0) return -1;
        data += sent, len -= sent;
    }
    return 0;
}

static void *serve_one(void *argument) {
    int fd = (int)(intptr_t)argument;
    char data[16384];
    ssize_t len;
    while ((len = recv(fd, data, sizeof data, 0)) > 0)
        if (send_all(fd, data, len) < 0) break;
    close(fd);
    return NULL;
}

static void *accept_all(void *argument) {
    int listener = (int)(intptr_t)argument, fd;
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)fd)) die("pthread_create");
        pthread_detach(thread);
    }
    die("accept");
    return NULL;
}

static int listen_on(int port) {
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in here = address(port);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (void *)&here, sizeof here) || listen(listener, 64)) die("listen");
    return listener;
}

static void ended(int number) {
    (void)number;
    _exit(0);
}

struct round {
    int fd, size;
    const char *data;
};

static void *send_round(void *argument) {
    struct round *round = argument;
    if (send_all(round->fd, round->data, round->size) < 0) die("send");
    return NULL;
}

static void exchange(int fd, int number, int index) {
    static char data[SIZE_MAX_BYTES], back[SIZE_MAX_BYTES];
    int size = sizes[index], got = 0;
    for (int i = 0; i < size; i++) data[i] = (char)(i * 7 + number * 31 + index);
    struct round round = {fd, size, data};
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_round, &round)) die("pthread_create");
    while (got < size) {
        ssize_t len = recv(fd, back + got, size - got, 0);
        if (len <= 0) die("recv");
        got += len;
    }
    pthread_join(sender, NULL);
    if (memcmp(data, back, size)) die("echo differs");
}

int talk(int port) {
    int fds[CONNECTIONS], echoes = 0;
    struct sockaddr_in to = address(port);
    for (int i = 0; i < CONNECTIONS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fds[i], (void *)&to, sizeof to)) die("connect");
    }
    for (int index = 0; index < SIZES; index++) {
        for (int i = 0; i < CONNECTIONS; i++, echoes++) exchange(fds[i], i, index);
        if (index == 0) usleep(200000); /* for sd ss to see them */
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        char byte;
        if (shutdown(fds[i], SHUT_WR) || recv(fds[i], &byte, 1, 0) != 0) die("end");
        close(fds[i]);
    }
    return echoes;
}

/* Everything that a connection may leave behind: duplicates, waits, instances. */
static int churn(int port, int count) {
    struct sockaddr_in to = address(port);
    char data[3000] = {0};
    for (int i = 0; i < count; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN};
        struct pollfd entry = {.fd = fd, .events = POLLIN};
        if (connect(fd, (void *)&to, sizeof to)) die("connect");
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) || send_all(fd, data, sizeof data)) die("send");
        if (epoll_wait(epoll, &event, 1, -1) != 1 || poll(&entry, 1, -1) != 1) die("wait");
        if (recv(fd, data, sizeof data, MSG_WAITALL) != sizeof data) die("recv");
        close(dup(fd));
        close(i % 2 ? fd : epoll);
        close(i % 2 ? epoll : fd);
    }
    return count;
}

static int talk_elsewhere(int port, const char *library) {
#ifdef STATIC
    (void)port, (void)library;
    return 0;
#else
    void *other = dlmopen(LM_ID_NEWLM, library, RTLD_NOW);
    if (!other) return fprintf(stderr, "%s\n", dlerror()), exit(1), 0;
    int (*function)(int) = (int (*)(int))dlsym(other, "talk");
    return function(port);
#endif
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int port = atoi(argv[2]), echoes = 0;
    signal(SIGTERM, ended);
    if (!strcmp(argv[1], "serve")) accept_all((void *)(intptr_t)listen_on(port));
    if (!strcmp(argv[1], "inside")) {
        pthread_t thread;
        pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)listen_on(port));
        puts("ready");
        fflush(stdout);
    }
    int is_churn = argc > 3 && !strcmp(argv[1], "churn");
    if (argc > 3) echoes = is_churn ? churn(port, atoi(argv[3])) : talk_elsewhere(port, argv[3]);
    if (!is_churn) echoes += talk(port);
    printf("%d echoes\n", echoes);
    return 0; /* and not _exit: sanitizers and valgrind look for leaks at the end */
}
