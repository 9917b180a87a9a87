/* The guest's shell scripts (guest/provision), embedded at build time by guest/embed.sh. */
#pragma once

extern const char guest_lib[], guest_detect[], guest_common[], guest_debian[], guest_rhel[], guest_arch[], guest_alpine[],
        guest_none[], guest_user[], guest_user_step[], guest_workdir_step[], guest_configure[], guest_end[];
