"""The flights as a table that grows: Spark's Structured Streaming over a stream of the log.

`python -m examples.spark` publishes a year of flights, aggregates them as a streaming query of
several micro-batches, holds the answer against one computed without Spark, and writes it back to
another stream. Needs Java, and PySpark 4.2 or newer, which `pip install '.[server,spark]'` brings.
"""
