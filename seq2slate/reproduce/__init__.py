"""The paper's experiments from one command."""
