"""Files that a runner loads as if they were the user's. None is imported here: they may need what is not there."""
