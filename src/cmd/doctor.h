/* The findings of `vmon doctor`. */
#pragma once

#include <stddef.h>

enum finding_state {
        FINDING_OK = 0,
        FINDING_WARN, /* works, with less */
        FINDING_FAIL, /* vmon serve cannot do its work */
};

struct finding {
        const char *name; /* static */
        enum finding_state state;
        char *detail; /* what is there */
        char *mend;   /* what to do, or NULL */
};

struct findings {
        struct finding *items;
        size_t n;
};

/* `detail` and `mend` are taken over. */
void findings_add(struct findings *f, const char *name, enum finding_state state, char *detail, char *mend);
void findings_free(struct findings *f);

struct doctor {
        const char *data_dir, *kit_dir;
        struct findings findings;
};

void doctor_check_programs(struct doctor *d);
void doctor_check_guest(struct doctor *d);   /* QEMU, kit, hypervisor */
void doctor_check_network(struct doctor *d);
void doctor_check_limits(struct doctor *d);  /* cgroups, memory, disk, descriptors, inotify */
void doctor_check_address(struct doctor *d); /* how clients reach this host */
