"""What both ends of a link say to each other: frames and messages, no I/O. The only part the agent may import."""
