/* What a test does to a server below scripts/with-etcd.sh, by etcdctl. */
#ifndef ETCDCTL_H
#define ETCDCTL_H

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

/* etcdctl, with the endpoint and up to three words. */
static void etcdctl(const char *verb, const char *key, const char *value)
{
    const char *arguments[7];
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        arguments[0] = getenv("WATCHCORE_TEST_ETCDCTL");
        arguments[1] = "--endpoints";
        arguments[2] = getenv("WATCHCORE_TEST_ENDPOINT");
        arguments[3] = verb;
        arguments[4] = key;
        arguments[5] = value;
        arguments[6] = NULL;
        if (freopen("/dev/null", "w", stdout) != NULL) {
            execv(arguments[0], (char *const *)(uintptr_t)arguments);
        }
        _exit(127);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* One revision of `count` keys below a prefix: "<prefix>0000" and so on, with the value. */
static void etcdctl_transaction(const char *prefix, int count, int value)
{
    char command[1024];
    FILE *pipe;
    int i;
    snprintf(command, sizeof(command), "'%s' --endpoints '%s' txn >/dev/null", getenv("WATCHCORE_TEST_ETCDCTL"),
             getenv("WATCHCORE_TEST_ENDPOINT"));
    pipe = popen(command, "w");
    CHECK(pipe != NULL);
    if (pipe == NULL) {
        return;
    }
    fprintf(pipe, "\n"); /* under no condition */
    for (i = 0; i < count; i++) {
        fprintf(pipe, "put %s%04d %d\n", prefix, i, value);
    }
    fprintf(pipe, "\n\n");
    CHECK(pclose(pipe) == 0);
}

#endif
