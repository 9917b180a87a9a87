/* Reading /proc: tasks, memory, CPU time. Values are 0 or NULL where a file is missing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct procfs_task {
        pid_t pid;
        char state;           /* R S D T t Z X … */
        bool kernel;          /* a kernel thread */
        uint64_t start_time;  /* clock ticks since boot: tells a reused PID apart */
};

/* All processes; the caller frees `ret`. */
size_t procfs_tasks(struct procfs_task **ret);

/* 0 when there is no such process. */
uint64_t procfs_start_time(pid_t pid);

/* The v2 control group, "/user"; the caller frees; NULL when unknown. */
char *procfs_cgroup(pid_t pid);

/* A line of /proc/meminfo in bytes. */
uint64_t procfs_meminfo(const char *key);

/* Clock ticks of all CPUs since boot: all, and not idle. */
void procfs_cpu(uint64_t *ret_total, uint64_t *ret_busy);
