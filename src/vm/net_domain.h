/* Domains in a guest's rules (sandbox-api 13.2), and the names by which it asks for a connection. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Longest name in text with NUL, "*." before it included. */
#define NET_DOMAIN_MAX 256

/* "name", "*.name" (what lies below it, not itself) or "*" (any name), written in lower case and without a final dot into `out`. False for
 * anything else: labels of more than 63 or no characters, other characters than letters, digits, '-' and '_' (names beyond ASCII are given in
 * their xn-- form), a last label of digits alone (it would be an address), more than 253 characters. */
bool net_parse_domain(const char *text, char out[NET_DOMAIN_MAX]);

/* A name as a client gives it, in a Host header (a port may follow) or in a TLS server_name: as above, without wildcards. */
bool net_parse_host(const char *text, size_t len, char out[NET_DOMAIN_MAX]);

/* Both as the functions above wrote them. */
bool net_domain_matches(const char *pattern, const char *name);
