"""What is computed: job files, sources, windows, kinds, outputs, parts and merges. Imports nothing of ours."""
