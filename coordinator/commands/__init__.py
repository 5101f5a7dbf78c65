"""One file per `coordinator` command; each is a thin client of the daemon."""
