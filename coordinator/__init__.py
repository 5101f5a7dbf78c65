"""The server's side: the daemon, its scheduler and store, the helpers sshd starts, and the commands."""
