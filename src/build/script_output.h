/* What a guest script says (guest/provision/lib.sh has the other side): its output for the build log, and the lines that are meant
 * for vmon: warnings, results, and the reason of its failure.
 */
#pragma once

#include <jansson.h>

#include "build/log.h"

struct script_output {
        struct output_log output; /* feed it with output_log_feed(), end it with output_log_end() */
        json_t *set;              /* object of strings: the results */
        char *reason;             /* of the script's own failure, one line; NULL while it gave none */
};

/* `log` and `prefix` as of output_log_init(); the object must stay where it is. */
void script_output_init(struct script_output *s, const struct build_log *log, const char *prefix);
/* The script has failed with `status` ("exit status 1"): repeats the last BUILD_SCRIPT_TAIL_LINES lines of its output in the log
 * at error, since output is at debug. Returns one line, "<what> failed: <reason, or status and last line>[ (its output …)]"; the
 * caller frees. Call after output_log_end(). */
char *script_output_failure(const struct script_output *s, const char *what, const char *status);
void script_output_free(struct script_output *s);
