"""A machine's side: links to a coordinator, a spool on local disk, and a local Ray pool."""
