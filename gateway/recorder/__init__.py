"""Recording: what the change feed says, written to the directory of a trace as it goes.

The loop only puts what it hears into a bounded queue. A thread makes events of it, appends them to the log of a part
and sees to it that they reach the disk; a child process turns complete logs into Parquet. Whatever happens to the disk,
the loop goes on: what does not fit is dropped, counted and marked as a gap.
"""
