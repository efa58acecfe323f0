"""The worker daemon of a comparison: loads decoders before the fork (`spark.python.daemon.module`)."""

from tidegate.spark.daemon import serve

if __name__ == "__main__":
    serve(("tidegate.verify.source", "tidegate.verify.target"))
