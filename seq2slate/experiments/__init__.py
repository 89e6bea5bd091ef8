"""Live experiments, pure: assignment, analysis, statistics and interleaving. No HTTP and no database."""
