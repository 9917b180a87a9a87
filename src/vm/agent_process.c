/* Guest processes through Process.Start (envd.md 2.1) on port 49983: one HTTP exchange by libcurl on a descriptor that the shim
 * dialled, the response parsed envelope by envelope as it comes.
 *
 * A stream is OPEN -> (start event) -> RUNNING -> (end event) -> ENDED; a transfer that finishes before the end event is BROKEN,
 * which is an error, never success. Exactly one of them is reported.
 */
#include <curl/curl.h>
#include <errno.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "vm/agent.h"
#include "vm/envelope.h"
#include "vm/vm_internal.h"

#define POLL_SLICE_MS 250
/* Answers of unary calls and of failed ones. */
#define TEXT_MAX 65536
#define SIGNAL_TIMEOUT_MS 10000

struct agent_stream {
        struct vm *vm;
        CURLM *multi;
        CURL *easy;
        struct curl_slist *headers;
        struct buf body, in, text;
        void (*on_output)(int stream, const char *data, size_t len, void *data_);
        void *data;
        char *access_token;
        long status;
        int fd;          /* until curl has it */
        json_int_t pid;  /* 0 before the start event */
        bool ended, done, failed;
        struct agent_exit exit;
        struct error error;
};

static void deliver(struct agent_stream *s, int stream, const char *base64)
{
        size_t len = strlen(base64), padding = 0;
        CLEANUP_FREE unsigned char *out = xmalloc(len / 4 * 3 + 4);
        int n;

        if (len % 4 == 0 && len)
                padding = (size_t)(base64[len - 1] == '=') + (size_t)(base64[len - 2] == '=');
        n = EVP_DecodeBlock(out, (const unsigned char *)base64, (int)len);
        if (n < 0 || (size_t)n < padding) {
                s->failed = true;
                error_set(&s->error, ERROR_INTERNAL, "guest agent: output is not base64");
                return;
        }
        if (s->on_output && (size_t)n > padding)
                s->on_output(stream, (const char *)out, (size_t)n - padding, s->data);
}

static void handle_end(struct agent_stream *s, const json_t *end)
{
        const char *status = json_str(end, "status");

        s->exit.code = json_bool(end, "exited", false) ? (int)json_int(end, "exitCode", 0) : -1;
        snprintf(s->exit.status, sizeof s->exit.status, "%s", status ?: s->exit.code < 0 ? "signal: unknown" : "exit status");
        if (!status && s->exit.code >= 0)
                snprintf(s->exit.status, sizeof s->exit.status, "exit status %d", s->exit.code);
        s->ended = true;
}

static void handle_event(struct agent_stream *s, const json_t *message)
{
        const json_t *event = json_object_get(message, "event"), *part;

        if ((part = json_object_get(event, "start"))) {
                s->pid = json_int(part, "pid", 0);
        } else if ((part = json_object_get(event, "data"))) {
                const char *out = json_str(part, "stdout") ?: json_str(part, "pty"), *error = json_str(part, "stderr");

                if (out)
                        deliver(s, 1, out);
                if (error)
                        deliver(s, 2, error);
        } else if ((part = json_object_get(event, "end"))) {
                handle_end(s, part);
        }
}

/* A Connect error, of the end envelope or a unary body. */
static void handle_error(struct agent_stream *s, const json_t *e)
{
        const char *code = json_str(e, "code") ?: "unknown";
        enum error_kind kind = ERROR_INTERNAL;

        if (streq(code, "invalid_argument") || streq(code, "unauthenticated") || streq(code, "not_found"))
                kind = ERROR_INVALID;
        else if (streq(code, "deadline_exceeded"))
                kind = ERROR_UNAVAILABLE;
        s->failed = true;
        if (kind == ERROR_UNAVAILABLE)
                error_set(&s->error, kind, "the process did not end within its time limit");
        else
                error_set(&s->error, kind, "%s", json_str(e, "message") ?: code);
}

static size_t on_body(char *data, size_t size, size_t count, void *userdata)
{
        struct agent_stream *s = userdata;
        size_t len = size * count;
        bool end = false;
        json_t *message;
        int r;

        curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->status);
        if (s->status != 200) {
                if (s->text.len + len <= TEXT_MAX)
                        buf_add(&s->text, data, len);
                return len;
        }
        buf_add(&s->in, data, len);
        while ((r = envelope_take(&s->in, &message, &end)) > 0) {
                const json_t *e = json_object_get(message, "error");

                if (!end)
                        handle_event(s, message);
                else if (e && !s->ended)
                        handle_error(s, e);
                json_decref(message);
        }
        if (r < 0) {
                s->failed = true;
                error_set(&s->error, ERROR_INTERNAL, "guest agent: malformed stream (%s)", strerror(-r));
                return 0;
        }
        return len;
}

static curl_socket_t open_socket(void *userdata, curlsocktype purpose, struct curl_sockaddr *address)
{
        struct agent_stream *s = userdata;
        int fd = s->fd;

        (void)purpose;
        (void)address;
        s->fd = -1;
        return fd < 0 ? CURL_SOCKET_BAD : fd;
}

static int socket_ready(void *userdata, curl_socket_t fd, curlsocktype purpose)
{
        (void)userdata;
        (void)fd;
        (void)purpose;
        return CURL_SOCKOPT_ALREADY_CONNECTED;
}

static void add_header(struct agent_stream *s, const char *name, const char *value)
{
        CLEANUP_FREE char *line = xasprintf("%s: %s", name, value);

        s->headers = curl_slist_append(s->headers, line);
}

static json_t *start_request(const struct agent_process *p)
{
        json_t *args = json_array(), *config = json_pack("{s:s}", "cmd", p->argv[0]), *request = json_object();

        for (const char *const *a = p->argv + 1; *a; a++)
                json_array_append_new(args, json_string(*a));
        json_object_set_new(config, "args", args);
        if (p->cwd)
                json_object_set_new(config, "cwd", json_string(p->cwd));
        if (p->env) {
                json_t *envs = json_object();

                for (const char *const *e = p->env; *e; e++) {
                        const char *equals = strchr(*e, '=');
                        CLEANUP_FREE char *name = equals ? xstrndup(*e, (size_t)(equals - *e)) : NULL;

                        if (name)
                                json_object_set_new(envs, name, json_string(equals + 1));
                }
                json_object_set_new(config, "envs", envs);
        }
        json_object_set_new(request, "process", config);
        json_object_set_new(request, "stdin", json_false());
        if (p->ordered)
                json_object_set_new(request, "vmonOrdered", json_true());
        if (p->tag)
                json_object_set_new(request, "tag", json_string(p->tag));
        return request;
}

static void add_user(struct agent_stream *s, const char *user)
{
        CLEANUP_FREE char *plain = xasprintf("%s:", user), *header = NULL;
        CLEANUP_FREE unsigned char *encoded = xmalloc(strlen(plain) * 4 / 3 + 8);

        EVP_EncodeBlock(encoded, (const unsigned char *)plain, (int)strlen(plain));
        header = xasprintf("Basic %s", (const char *)encoded);
        add_header(s, "Authorization", header);
}

/* Prepares the exchange on a fresh connection to the agent. */
static int prepare(struct agent_stream *s, const char *method, const char *content_type, struct error *err)
{
        CLEANUP_FREE char *url = xasprintf("http://" VM_GUEST_ADDRESS ":%d/process.Process/%s", VM_AGENT_PORT, method);
        int r = vm_connect(s->vm, VM_AGENT_PORT, &s->fd, err);

        if (r < 0)
                return r;
        s->easy = curl_easy_init();
        s->multi = curl_multi_init();
        add_header(s, "Content-Type", content_type);
        add_header(s, "Connect-Protocol-Version", "1");
        add_header(s, "Expect", "");
        if (s->access_token)
                add_header(s, "X-Access-Token", s->access_token);
        curl_easy_setopt(s->easy, CURLOPT_URL, url);
        curl_easy_setopt(s->easy, CURLOPT_PROXY, "");
        curl_easy_setopt(s->easy, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(s->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
        curl_easy_setopt(s->easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
        curl_easy_setopt(s->easy, CURLOPT_OPENSOCKETDATA, s);
        curl_easy_setopt(s->easy, CURLOPT_SOCKOPTFUNCTION, socket_ready);
        curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
        curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, s->headers);
        curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)s->body.len);
        curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->body.data);
        curl_multi_add_handle(s->multi, s->easy);
        return 0;
}

void agent_stream_close(struct agent_stream *s)
{
        if (!s)
                return;
        if (s->easy) {
                curl_multi_remove_handle(s->multi, s->easy);
                curl_easy_cleanup(s->easy);
        }
        if (s->multi)
                curl_multi_cleanup(s->multi);
        if (s->fd >= 0)
                close(s->fd);
        curl_slist_free_all(s->headers);
        buf_free(&s->body);
        buf_free(&s->in);
        buf_free(&s->text);
        free(s->access_token);
        free(s);
}

static void finished(struct agent_stream *s, CURLcode result)
{
        CLEANUP_JSON json_t *j = NULL;

        s->done = true;
        curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->status);
        if (s->failed || s->ended)
                return;
        s->failed = true;
        if (result == CURLE_OK && s->status == 200)
                error_set(&s->error, ERROR_INTERNAL, "guest agent: the stream ended before the process did");
        else if (result != CURLE_OK)
                error_set(&s->error, ERROR_UNAVAILABLE, "guest agent: %s", curl_easy_strerror(result));
        else if (json_parse(buf_str(&s->text), s->text.len, &j, NULL) == 0 && json_str(j, "message"))
                error_set(&s->error, s->status < 500 ? ERROR_INVALID : ERROR_INTERNAL, "%s", json_str(j, "message"));
        else
                error_set(&s->error, ERROR_INTERNAL, "guest agent: HTTP status %ld", s->status);
}

/* A guest that is gone does not close its connections: nobody is left to answer in its namespace. */
static void note_death(struct agent_stream *s)
{
        s->failed = true;
        vm_death(s->vm, &s->error);
}

/* Moves bytes, waiting at most `wait_ms` for some. */
static void turn(struct agent_stream *s, unsigned wait_ms)
{
        struct curl_waitfd death = {.fd = vm_exit_fd(s->vm), .events = CURL_WAIT_POLLIN};
        int running = 0, left;
        CURLMsg *m;

        curl_multi_perform(s->multi, &running);
        if (running && !s->ended && wait_ms) {
                curl_multi_poll(s->multi, &death, 1, (int)wait_ms, NULL);
                curl_multi_perform(s->multi, &running);
        }
        while ((m = curl_multi_info_read(s->multi, &left)))
                if (m->msg == CURLMSG_DONE)
                        finished(s, m->data.result);
        if (death.revents && !s->ended && !s->failed)
                note_death(s);
}

int agent_spawn(struct vm *vm, const struct agent_process *p, struct agent_stream **ret, struct error *err)
{
        CLEANUP_JSON json_t *request = start_request(p);
        struct agent_stream *s = xcalloc(1, sizeof *s);
        int r;

        *s = (struct agent_stream){.vm = vm, .fd = -1, .on_output = p->on_output, .data = p->data,
                                   .access_token = xstrdup_or_null(p->access_token)};
        envelope_format(&s->body, 0, request);
        if (p->user)
                add_user(s, p->user);
        if (p->timeout_s) {
                CLEANUP_FREE char *ms = xasprintf("%llu", p->timeout_s * 1000ULL);

                add_header(s, "Connect-Timeout-Ms", ms);
        }
        r = prepare(s, "Start", "application/connect+json", err);
        /* Until the guest says that it runs (or why not). */
        while (r == 0 && !s->pid && !s->done && !s->failed && !s->ended) {
                turn(s, POLL_SLICE_MS);
                if (p->cancelled && p->cancelled(p->data))
                        r = error_set(err, ERROR_CANCELLED, "cancelled while starting %s", p->argv[0]);
        }
        if (r == 0 && s->failed && !s->ended) {
                if (err)
                        *err = s->error;
                r = error_kind_to_errno(s->error.kind);
        }
        if (r < 0) {
                agent_stream_close(s);
                return r;
        }
        *ret = s;
        return 0;
}

int agent_stream_poll(struct agent_stream *s, unsigned wait_ms, struct agent_exit *ret, struct error *err)
{
        if (!s->ended && !s->failed && !s->done)
                turn(s, wait_ms);
        if (s->ended) {
                *ret = s->exit;
                return 0;
        }
        if (s->failed) {
                if (err)
                        *err = s->error;
                return error_kind_to_errno(s->error.kind);
        }
        return 1;
}

/* Best effort: the guest may be past answering. */
static void kill_process(const struct agent_stream *running)
{
        CLEANUP_JSON json_t *j = json_pack("{s:{s:I}, s:s}", "process", "pid", running->pid, "signal", "SIGNAL_SIGKILL");
        struct agent_stream *s = xcalloc(1, sizeof *s);
        CLEANUP_FREE char *text = json_text(j);

        *s = (struct agent_stream){.vm = running->vm, .fd = -1, .access_token = xstrdup_or_null(running->access_token)};
        buf_adds(&s->body, text);
        if (prepare(s, "SendSignal", "application/json", NULL) == 0)
                for (int waited = 0; !s->done && waited < SIGNAL_TIMEOUT_MS; waited += POLL_SLICE_MS)
                        turn(s, POLL_SLICE_MS);
        agent_stream_close(s);
}

int agent_run(struct vm *vm, const struct agent_process *p, struct agent_exit *ret, struct error *err)
{
        struct agent_stream *s;
        int r = agent_spawn(vm, p, &s, err);

        if (r < 0)
                return r;
        while ((r = agent_stream_poll(s, POLL_SLICE_MS, ret, err)) > 0) {
                if (!p->cancelled || !p->cancelled(p->data))
                        continue;
                kill_process(s);
                r = error_set(err, ERROR_CANCELLED, "cancelled while running %s", p->argv[0]);
                break;
        }
        agent_stream_close(s);
        return r;
}
