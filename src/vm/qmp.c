/* See qmp.h and QEMU's docs/interop/qmp-spec. */
#include "vm/qmp.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

void qmp_classify(const json_t *line, struct qmp_message *ret)
{
        const json_t *v;

        *ret = (struct qmp_message){.id = json_int(line, "id", -1)};
        if (json_object_get(line, "QMP")) {
                ret->kind = QMP_GREETING;
        } else if ((v = json_object_get(line, "return"))) {
                ret->kind = QMP_RETURN;
                ret->value = v;
        } else if ((v = json_object_get(line, "error"))) {
                ret->kind = QMP_ERROR;
                ret->text = json_str(v, "desc") ?: "unknown error";
        } else if (json_str(line, "event")) {
                ret->kind = QMP_EVENT;
                ret->text = json_str(line, "event");
                ret->value = json_object_get(line, "data");
        }
}

void qmp_format(struct buf *b, const char *command, const json_t *arguments, json_int_t id)
{
        CLEANUP_JSON json_t *j = json_pack("{s:s, s:I}", "execute", command, "id", id);
        CLEANUP_FREE char *text = NULL;

        if (!j)
                return;
        if (arguments)
                json_object_set(j, "arguments", (json_t *)arguments);
        text = json_text(j);
        buf_adds(b, text);
        buf_addc(b, '\n');
}

int qmp_event_matches(const struct qmp_message *event, const json_t *wanted)
{
        const json_t *list = json_object_get(wanted, "status"), *one;
        const char *status;
        size_t i;

        if (!streq(event->text, json_str(wanted, "event")))
                return 0;
        if (!json_is_array(list))
                return 1;
        status = json_str(event->value, "status");
        json_array_foreach(list, i, one)
                if (status && streq(status, json_string_value(one)))
                        return 1;
        return 0;
}
