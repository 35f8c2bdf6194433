"""`make bench`: Forebay beside a bare server, the backend itself and Triton's own batcher, in one run.

load.py starts wrk and reads what it says; processes.py starts what is measured, each on a core of its own; measures.py
says what is compared with what; rounds.py (pure) turns rounds into medians and ratios; report.py writes them down.
"""
