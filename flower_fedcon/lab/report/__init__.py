"""What the folders of runs tell: one page to look at, and lines that follow a run."""
