/* A program for any libc, linked in any way: an echo server in a thread and a client, by read and write, by messages and by stdio.
   The connection stays until standard input ends. */
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void *serve(void *listener)
{
    int connection = accept(*(int *)listener, NULL, NULL);
    char bytes[4096];
    ssize_t len;
    while ((len = read(connection, bytes, sizeof bytes)) > 0)
        if (write(connection, bytes, len) != len)
            break;
    close(connection);
    return NULL;
}

static void check(int holds, const char *what)
{
    if (!holds) {
        perror(what);
        exit(1);
    }
}

int main(int count, char **words)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int listener = socket(AF_INET, SOCK_STREAM, 0), connection = socket(AF_INET, SOCK_STREAM, 0);
    pthread_t server;
    check(count > 1, "arguments");
    name.sin_port = htons(atoi(words[count - 1]));
    check(!bind(listener, (void *)&name, sizeof name) && !listen(listener, 9), "listen");
    check(!pthread_create(&server, NULL, serve, &listener), "thread");
    check(!connect(connection, (void *)&name, sizeof name), "connect");
    for (int i = 0; i < 20000; i++) {
        char sent[64], got[64];
        memset(sent, i, sizeof sent);
        check(write(connection, sent, sizeof sent) == sizeof sent, "write");
        check(recv(connection, got, sizeof got, MSG_WAITALL) == sizeof got, "recv");
        check(!memcmp(sent, got, sizeof got), "echo");
    }
    /* As any program of musl's leaves them: what lies beside its lengths is not zero. */
    struct iovec part = { "message", 7 };
    struct msghdr message;
    char got[8] = "";
    memset(&message, 0xff, sizeof message);
    message.msg_name = message.msg_control = NULL;
    message.msg_namelen = message.msg_controllen = message.msg_flags = 0;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    check(sendmsg(connection, &message, 0) == 7, "sendmsg");
    part.iov_base = got;
    check(recvmsg(connection, &message, MSG_WAITALL) == 7 && !strcmp(got, "message"), "recvmsg");
    FILE *stream = fdopen(connection, "r+");
    char line[32];
    check(stream && fileno(stream) == connection, "fileno");
    check(fprintf(stream, "line %d\n", 42) == 8 && !fflush(stream), "fprintf");
    check(fgets(line, sizeof line, stream) && !strcmp(line, "line 42\n"), "fgets");
    while (read(0, got, 1) > 0)
        ;
    fclose(stream);
    pthread_join(server, NULL);
    return puts("echoed") < 0;
}
