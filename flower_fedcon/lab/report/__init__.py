"""Reports on folders of runs: one page to read, and lines that follow a run."""
