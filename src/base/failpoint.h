/* Places where a test may end the process, as a power cut would: before and after every step that makes something durable.
 *
 * Without the two environment variables below a passage costs one comparison. Both are for tests only:
 * VMON_FAILPOINT=[PLACE:PATTERN]@N   SIGKILL at the N-th passage (from 1), counting all of them, or only those of PLACE
 *                                    ("fsync", "rename", "renamed", "published", "commit", "committed", "remove", "removed",
 *                                    "merge", "merged", "unlinked") whose detail matches the shell PATTERN (a "*" stops at "/")
 * VMON_FAILPOINT_LOG=FILE            append one line "PLACE DETAIL" for each passage that is counted
 */
#pragma once

/* `place` and `detail` must not contain newlines; any thread. Never returns at the chosen passage. */
void failpoint(const char *place, const char *detail);
