"""The pipeline's worker daemon. It imports the stages before it forks (`spark.python.daemon.module`)."""

from tidegate.spark.daemon import serve

if __name__ == "__main__":
    serve(("tidegate.pipeline.worker.kept", "tidegate.pipeline.worker.load_task"))
