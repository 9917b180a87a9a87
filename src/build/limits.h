/* Named limits of a build (design 8.5). */
#pragma once

#define BUILD_STEPS_MAX 1000           /* steps of one build */
#define BUILD_STEP_ARGS_MAX 1024       /* arguments of one step */
#define BUILD_STEP_TYPE_MAX 64         /* bytes of a step's type */
#define BUILD_ARG_MAX (120 * 1024)     /* bytes of one argument: Linux allows 128 KiB in one argv entry */
#define BUILD_ENV_NAME_MAX 1024        /* bytes of a variable's name: with "=" and a value it is one argv entry */
#define BUILD_ENV_MAX (200 * 1024)     /* bytes of the build environment as JSON: a template's record has room for two */
#define BUILD_REFERENCE_MAX 1024       /* bytes of an image or template reference */

/* Bytes of one line in the log; longer ones are split, nothing is lost. With its prefix a piece stays below the 32 KiB at which the
 * store would split it anew. */
#define BUILD_LOG_LINE_MAX (30 * 1024)
#define BUILD_STEP_TEXT_MAX 2048       /* bytes of a step that its log line and its error show */
#define BUILD_SCRIPT_TAIL_LINES 30     /* last lines of a failed script that the log repeats at error */
#define BUILD_SCRIPT_REASON_MAX 512    /* bytes of its last line in the reason, where the script gives none */

#define BUILD_IMAGE_MB_MAX 25000       /* unpacked size of a base image (template-api 10.3) */
#define BUILD_BOOT_SECONDS 300         /* power on to the agent's answer; software emulation is slow */
#define BUILD_UNPACK_SECONDS 1800
#define BUILD_PROVISION_SECONDS 1800
#define BUILD_COPY_SECONDS 1800
#define BUILD_CONFIGURE_SECONDS 300    /* template-api 13.1 */
#define BUILD_COMMAND_SECONDS 3600     /* one RUN (template-api 11.1) */
#define BUILD_MAX_SECONDS 3600         /* trigger's turn to the end: default of --build-seconds (template-api 14.1) */
#define BUILD_READY_SECONDS 600        /* default of --ready-seconds (template-api 13.3) */
#define BUILD_READY_INTERVAL_MS 2000
#define BUILD_MEMORY_FLOOR_MIB 512     /* of the VM that unpacks and provisions a base image */

#define BUILD_CACHE_LAYERS_MAX 48      /* product page, "Steps and the step cache" */
