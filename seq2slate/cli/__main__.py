"""`python -m seq2slate.cli` is `seq2slate`."""

from seq2slate.cli import main

main()
