"""What a worker of a pool does with shards."""
