"""Parts of the benchmark `shapes.py`. What needs much memory is imported by the processes that are measured only."""
