/* The life of a build: every state with every event, and what follows from the table as a whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "store/build_state.h"

static const struct {
        enum build_state from;
        enum build_event event;
        enum build_state to;
} moves[] = {
        { BUILD_WAITING, BUILD_EVENT_TRIGGER, BUILD_BUILDING }, { BUILD_WAITING, BUILD_EVENT_FAIL, BUILD_ERROR },
        { BUILD_WAITING, BUILD_EVENT_SUPERSEDE, BUILD_ERROR },  { BUILD_WAITING, BUILD_EVENT_EXPIRE, BUILD_ERROR },
        { BUILD_BUILDING, BUILD_EVENT_READY, BUILD_READY },     { BUILD_BUILDING, BUILD_EVENT_FAIL, BUILD_ERROR },
        { BUILD_BUILDING, BUILD_EVENT_INTERRUPT, BUILD_ERROR },
};

static int expected(enum build_state from, enum build_event event)
{
        for (size_t i = 0; i < sizeof(moves) / sizeof(*moves); i++)
                if (moves[i].from == from && moves[i].event == event)
                        return (int)moves[i].to;
        return -1;
}

static void every_state_with_every_event(void **state)
{
        (void)state;
        for (int from = 0; from < BUILD_STATES; from++)
                for (int event = 0; event < BUILD_EVENTS; event++) {
                        enum build_state to = (enum build_state)99;
                        bool moved = build_state_next((enum build_state)from, (enum build_event)event, &to);
                        int want = expected((enum build_state)from, (enum build_event)event);

                        assert_int_equal(moved, want >= 0);
                        assert_int_equal(to, moved ? want : 99); /* untouched otherwise */
                }
}

static void final_states(void **state)
{
        (void)state;
        for (int s = 0; s < BUILD_STATES; s++)
                assert_int_equal(build_state_is_final((enum build_state)s), s == BUILD_READY || s == BUILD_ERROR);
}

/* No sequence of events, however long, visits a state twice: a build goes one way. */
static void goes_one_way(void **state)
{
        (void)state;
        for (int from = 0; from < BUILD_STATES; from++)
                for (int event = 0; event < BUILD_EVENTS; event++) {
                        enum build_state to;

                        if (build_state_next((enum build_state)from, (enum build_event)event, &to))
                                assert_true((int)to > from);
                }
}

static void names(void **state)
{
        (void)state;
        for (int s = 0; s < BUILD_STATES; s++)
                assert_int_equal(build_state_from(build_state_name((enum build_state)s)), s);
        assert_int_equal(build_state_from("snapshotting"), BUILD_ERROR);
        assert_int_equal(build_state_from(""), BUILD_ERROR);
        assert_int_equal(build_state_from(NULL), BUILD_ERROR);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(every_state_with_every_event), cmocka_unit_test(final_states),
                                            cmocka_unit_test(goes_one_way), cmocka_unit_test(names) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
