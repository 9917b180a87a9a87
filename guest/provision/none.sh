# No known distribution: the agent stays PID 1, nothing is installed.
ADMIN_GROUP=wheel
INIT_SYSTEM=agent

install_packages() { :; }
