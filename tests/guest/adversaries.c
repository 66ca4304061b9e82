/* Programs that try to outlive the kill of their run. argv: mode, number.
 * Each prints "ready" once it has done its worst. Bounded: no mode has more than a few hundred processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOCKS 10
#define RTTIME 15

static void ready(void) { if (write(1, "ready\n", 6) < 0) _exit(1); }
static void forever(void) { for (;;) pause(); }

static void quiet(void) { close(0); close(1); close(2); }

/* A daemon in the classic way: fork, setsid, fork, parents gone. */
static int daemonised(void) {
    pid_t pid = fork();
    if (pid > 0) { waitpid(pid, NULL, 0); return 0; }
    setsid();
    if (fork() > 0) _exit(0);
    quiet();
    return 1;
}

static void lower(int which, rlim_t value) {
    struct rlimit limit = {value, value};
    setrlimit(which, &limit);
}

static rlim_t hard(int which) {
    struct rlimit limit;
    getrlimit(which, &limit);
    return limit.rlim_max;
}

static void comet(int by_suicide) {
    for (;;) {
        pid_t pid = fork();
        if (pid == 0) { setsid(); continue; }
        if (pid < 0) continue;
        if (by_suicide) kill(getpid(), SIGKILL);
        _exit(0);
    }
}

static void *spin(void *unused) { (void)unused; for (;;) usleep(1000); return NULL; }

static void *take_stop_back(void *program) {
    char *args[] = {program, "wait", NULL};
    ready();
    usleep(50000);
    execv(program, args);
    return NULL;
}

static void *multiply(void *unused) {
    (void)unused;
    for (;;) { usleep(500); if (fork() == 0) { setsid(); usleep(2000); _exit(0); } }
    return NULL;
}

static void *wait_for_all(void *unused) {
    (void)unused;
    for (;;) if (wait(NULL) < 0) usleep(1000);
    return NULL;
}

int main(int argc, char **argv) {
    const char *mode = argv[1];
    int number = argc > 2 ? atoi(argv[2]) : 1;
    if (!strcmp(mode, "wait")) { quiet(); forever(); }
    if (!strcmp(mode, "swift")) { /* an ordinary program, but as quick as can be */
        for (int i = 0; i < number; i++) if (fork() == 0) { quiet(); forever(); }
        usleep(20000);
        return 0;
    }
    if (!strcmp(mode, "early")) { /* fork before the guest could set the second limit */
        for (int i = 0; i < number; i++) if (fork() == 0) {
            setsid();
            lower(RTTIME, hard(RTTIME) - 1 - i); /* pose as a later run */
            quiet();
            forever();
        }
        ready();
        return 0;
    }
    if (!strcmp(mode, "tracer")) { /* holds the main process of another run, dead or alive */
        pid_t victim = number;
        if (ptrace(PTRACE_SEIZE, victim, 0, 0)) return 3;
        ready();
        forever();
    }
    if (!strcmp(mode, "stopped-for-its-parent")) { /* process 1 is the parent, and sees the stop */
        ready();
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        forever();
    }
    if (!strcmp(mode, "vanishing-stop")) { /* the same, and another thread takes the stop back by exec */
        pthread_t thread;
        pthread_create(&thread, NULL, take_stop_back, argv[0]);
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        syscall(SYS_tgkill, getpid(), getpid(), SIGSTOP);
        forever();
    }
    if (!strcmp(mode, "stopper")) { /* of all that comes, before it is a program */
        ready();
        for (;;) kill(-1, SIGSTOP);
    }
    if (!strcmp(mode, "threads")) { /* main thread gone, another lives: looks like a zombie */
        pthread_t thread;
        pthread_create(&thread, NULL, spin, NULL);
        ready();
        pthread_exit(NULL);
    }
    if (!strcmp(mode, "threaded-forks")) {
        pthread_t thread;
        pthread_create(&thread, NULL, multiply, NULL);
        pthread_create(&thread, NULL, wait_for_all, NULL);
        ready();
        pthread_exit(NULL);
    }
    for (int i = 0; i < number; i++) {
        if (!strcmp(mode, "daemons")) { if (daemonised()) forever(); }
        else if (!strcmp(mode, "cleared")) {
            if (daemonised()) { char *args[] = {argv[0], "wait", NULL}, *none[] = {NULL}; execve(argv[0], args, none); _exit(1); }
        } else if (!strcmp(mode, "undumpable")) {
            if (daemonised()) { clearenv(); prctl(PR_SET_DUMPABLE, 0); forever(); }
        } else if (!strcmp(mode, "lowered")) {
            if (daemonised()) { lower(LOCKS, i); lower(RTTIME, i % 2); forever(); }
        } else if (!strcmp(mode, "posing")) {
            if (daemonised()) { lower(RTTIME, hard(RTTIME) - 1 - i % 20); lower(LOCKS, 1 + i % 5); forever(); }
        } else if (!strcmp(mode, "deaf")) {
            if (fork() == 0) { for (int s = 1; s < 65; s++) signal(s, SIG_IGN); forever(); }
        } else if (!strcmp(mode, "stopped")) {
            if (fork() == 0) { setsid(); raise(SIGSTOP); forever(); }
        } else if (!strcmp(mode, "zombies")) {
            if (fork() == 0) _exit(0);
        } else if (!strcmp(mode, "vforks")) {
            if (fork() == 0) { if (vfork() == 0) { char *args[] = {argv[0], "wait", NULL}; usleep(1000000); execv(argv[0], args); _exit(1); } forever(); }
        } else if (!strcmp(mode, "spammers") || !strcmp(mode, "forking-spammers")) {
            if (fork() == 0) {
                setsid();
                for (;;) {
                    kill(-1, SIGCONT);
                    if (mode[0] == 'f') { pid_t pid = fork(); if (pid > 0) { if (i % 2) _exit(0); waitpid(pid, NULL, WNOHANG); } }
                    usleep(200);
                }
            }
        } else if (!strcmp(mode, "traced")) {
            pid_t child = fork();
            if (child == 0) { setsid(); ptrace(PTRACE_TRACEME, 0, 0, 0); raise(SIGSTOP); forever(); }
        } else if (!strcmp(mode, "comets")) { if (daemonised()) { clearenv(); comet(0); } }
        else if (!strcmp(mode, "suicidal-comets")) { if (daemonised()) { clearenv(); comet(1); } }
        else if (!strcmp(mode, "bomb")) { while (fork() >= 0 && i++ < 12) {} for (;;) fork(); }
        else if (!strcmp(mode, "spinners")) { if (fork() == 0) { setsid(); for (;;) {} } }
        else return 2;
    }
    if (!strcmp(mode, "vforks")) usleep(100000);
    ready();
    forever();
}
