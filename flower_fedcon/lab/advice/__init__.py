"""Which methods suit a problem: what they declare, what was measured, and a short trial."""
