"""The contracts between the steps: the columns of every table that passes from one to another."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

# As `metadata.traces.tables.EVENT_SCHEMA`, which a test compares.
EVENTS: Final = StructType(
    [
        StructField("seq", LongType(), False),
        StructField("run", IntegerType(), False),
        StructField("kind", StringType(), False),
        StructField("taken_us", LongType(), False),
        StructField("arrival_us", LongType()),
        StructField("store_ms", LongType()),
        StructField("store_seq", LongType()),
        StructField("bucket", IntegerType()),
        StructField("namespace", StringType()),
        StructField("topic", StringType()),
        StructField("incarnation", StringType()),
        StructField("version", LongType()),
        StructField("epoch", LongType()),
        StructField("size", LongType()),
        StructField("value", BinaryType()),
        StructField("detail", StringType()),
    ]
)

# What happened to topics, in one time without jumps: the input of analysis and replay.
TIMELINE: Final = StructType(
    [
        StructField("at_us", LongType(), False),  # since the first event; seeds are at 0
        StructField("seq", LongType(), False),  # orders what happened at the same time
        StructField("namespace", StringType(), False),
        StructField("topic", StringType(), False),
        StructField("op", StringType(), False),  # seed, create, change or delete
        StructField("incarnation", StringType(), False),
        StructField("epoch", LongType()),
        StructField("size", LongType()),
        StructField("value", BinaryType()),
        StructField("inferred", BooleanType(), False),  # found after a gap, and not seen happening
    ]
)

# What the tasks of a replay saw, all in one table because a stage has one result; `record` says which columns count.
# All times are microseconds of the store's clock, corrected by what the task measured.
OBSERVATIONS: Final = StructType(
    [
        StructField("record", StringType(), False),  # write, push, watcher, absence or task
        StructField("task", IntegerType(), False),
        # write: one change, made in the store. push also has namespace, and topic where a DAG was pushed.
        StructField("namespace", StringType()),
        StructField("topic", StringType()),
        StructField("op", StringType()),  # create, change, delete, or touch: a change that leaves the layout
        StructField("due_us", LongType()),
        StructField("sent_us", LongType()),
        StructField("done_us", LongType()),  # the store's answer
        StructField("incarnation", StringType()),
        StructField("epoch", LongType()),  # after a write; of a pushed DAG
        StructField("error", StringType()),  # why a write was not done
        # push: one update that a watcher was sent.
        StructField("watcher", IntegerType()),  # counted through all tasks
        StructField("arrival_us", LongType()),
        StructField("bytes", LongType()),  # of the frame; of all pushes for a watcher
        StructField("added", ArrayType(StringType())),  # local names, against what the watcher showed before
        StructField("removed", ArrayType(StringType())),
        StructField("after_reconnect", BooleanType()),  # so its time says nothing about the server
        # watcher: what became of it.
        StructField("watches", StringType()),  # namespace or topic
        StructField("converged", BooleanType()),
        StructField("missing", LongType()),  # final states that it does not show
        StructField("duplicate", LongType()),
        StructField("out_of_order", LongType()),
        StructField("pushes", LongType()),
        StructField("snapshots", LongType()),
        StructField("reconnects", LongType()),
        # absence: from when until when a watcher had no watch, because its connection was lost.
        StructField("left_us", LongType()),
        StructField("back_us", LongType()),
        # task: one per task.
        StructField("host", StringType()),
        StructField("offset_us", LongType()),  # store's clock minus the task's
        StructField("offset_error_us", LongType()),
        StructField("started_us", LongType()),
        StructField("settled_us", LongType()),
        StructField("cpu_us", LongType()),
    ]
)
