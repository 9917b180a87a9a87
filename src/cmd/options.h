/* The command line of `vmon serve` (docs/configuration.md), every option also from the environment. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

#define MAX_BUILDS_MAX 64
#define BUILD_SECONDS_LIMIT 86400 /* of --build-seconds and --ready-seconds */

struct serve_address {
        char host[46]; /* numeric */
        int port;      /* 0 = any free one */
};

struct serve_options { /* strings are owned; those that may be NULL say so */
        char *data_dir;
        struct serve_address listen, cluster_listen;
        char *public_url;           /* NULL: made from the listener */
        char *domain;               /* or NULL */
        char *tls_cert, *tls_key;   /* both or none */
        char *kit_dir;
        char *store_url;
        char *node_name;
        char *cluster_token_file;
        char *registry_mirror;      /* or NULL */
        char **insecure_registries; /* NULL-terminated */
        unsigned max_builds;
        unsigned build_seconds, ready_seconds; /* 1 to BUILD_SECONDS_LIMIT */
        uint64_t step_cache_bytes, image_cache_bytes;
        unsigned pool;              /* sandboxes kept ready, at most; 0 = none */
        uint64_t pool_bytes;        /* of memory for them */
        uint64_t history_bytes;     /* of disk for logs and metrics of sandboxes */
        const char *hypervisor;     /* "auto", "kvm", "tcg" */
        char *cpu_baseline;         /* or NULL */
        int network;                /* enum vm_network */
        enum log_level log_level;
        bool log_json;
};

/* Reads the command line; on wrong usage prints why and returns the exit status 2, else 0. The environment comes first, so
 * that the command line wins. */
int serve_options_parse(int argc, char **argv, struct serve_options *ret);
void serve_options_free(struct serve_options *o);

/* "ADDR:PORT" or "[V6]:PORT" with a numeric address. Pure. */
bool serve_address_parse(const char *s, struct serve_address *ret);
