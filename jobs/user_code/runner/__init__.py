"""What runs in the processes of users' code. Nothing is imported here: models and torch need what may not be there."""
