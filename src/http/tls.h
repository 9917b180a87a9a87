/* TLS for the server (the driver's --tls-cert and --tls-key), by OpenSSL over memory. Not part of http_sources: the agent
 * speaks plain HTTP.
 */
#pragma once

#include "base/error.h"
#include "http/transport.h"

/* For http_server_options.transport, with .ssl_ctx from http_tls_context_new(). */
extern const struct http_transport http_tls_transport;

/* Loads a PEM certificate chain and its private key: TLS 1.2 or later, ALPN http/1.1. The error names the file, never its
 * content. `ret` is freed with http_tls_context_free() after the server. */
int http_tls_context_new(const char *cert_file, const char *key_file, void **ret, struct error *err);
void http_tls_context_free(void *context);
