#include "procfs.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#define TEXT_MAX (256 * 1024)
#define PF_KTHREAD 0x00200000u

static bool read_task(pid_t pid, struct procfs_task *ret)
{
        char path[64];
        CLEANUP_BUF struct buf text = {};
        unsigned long long start = 0;
        unsigned flags = 0;
        char state = 0, *rest;

        snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
        if (file_read(path, TEXT_MAX, &text, NULL) < 0 || !text.data)
                return false;
        /* The name in parentheses may hold anything, parentheses included. */
        rest = strrchr(text.data, ')');
        if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                            &state, &flags, &start) != 3)
                return false;
        *ret = (struct procfs_task){ pid, state, flags & PF_KTHREAD, start };
        return true;
}

size_t procfs_tasks(struct procfs_task **ret)
{
        CLEANUP_CLOSEDIR DIR *dir = opendir("/proc");
        struct procfs_task *tasks = NULL, task;
        size_t count = 0, cap = 0;
        struct dirent *e;

        while (dir && (e = readdir(dir))) {
                if (!isdigit((unsigned char)e->d_name[0]) || !read_task(atoi(e->d_name), &task))
                        continue;
                if (count == cap) {
                        cap = cap ? 2 * cap : 64;
                        tasks = xreallocarray(tasks, cap, sizeof(*tasks));
                }
                tasks[count++] = task;
        }
        *ret = tasks;
        return count;
}

uint64_t procfs_start_time(pid_t pid)
{
        struct procfs_task task;

        return read_task(pid, &task) ? task.start_time : 0;
}

char *procfs_cgroup(pid_t pid)
{
        char path[64];
        CLEANUP_BUF struct buf text = {};
        char *line;

        snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
        if (file_read(path, TEXT_MAX, &text, NULL) < 0 || !text.data)
                return NULL;
        line = str_starts(text.data, "0::") ? text.data : strstr(text.data, "\n0::");
        line = line ? strchr(line, '/') : NULL;
        return line ? xstrndup(line, strcspn(line, "\n")) : NULL;
}

uint64_t procfs_meminfo(const char *key)
{
        CLEANUP_FCLOSE FILE *f = fopen("/proc/meminfo", "re");
        size_t len = strlen(key);
        char line[256];

        while (f && fgets(line, sizeof(line), f))
                if (strncmp(line, key, len) == 0 && line[len] == ':')
                        return strtoull(line + len + 1, NULL, 10) * 1024;
        return 0;
}

void procfs_cpu(uint64_t *ret_total, uint64_t *ret_busy)
{
        CLEANUP_FCLOSE FILE *f = fopen("/proc/stat", "re");
        unsigned long long v[8] = {};

        *ret_total = *ret_busy = 0;
        if (!f || fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", v, v + 1, v + 2, v + 3, v + 4, v + 5, v + 6,
                         v + 7) < 4)
                return;
        for (int i = 0; i < 8; i++)
                *ret_total += v[i];
        *ret_busy = *ret_total - v[3] - v[4];
}
