"""One file per `agent` command."""
