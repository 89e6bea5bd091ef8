"""What `make bench` measures: ratios, side by side in one run, never absolute times alone."""
