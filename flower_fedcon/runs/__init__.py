"""What a run leaves: directory, checkpoint, history, certificates."""
