"""The consumer's worker daemon: decoder loaded before the fork (`spark.python.daemon.module`)."""

from tidegate.spark.daemon import serve

if __name__ == "__main__":
    serve(("tidegate.consumer.reading.fetch",))
