"""A Spark query as a user writes it, to be killed: changes of a table into Parquet files.

    python -m tests.integration.stream_query FOLDER OPTIONS_JSON [once]

A line of JSON when it runs, one at its end; the files are exactly once by Spark's own checkpoint.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tidegate.spark.session import open_session


def main() -> int:
    """0: it came to its end; 1: it was stopped, and the last line says why."""
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    work = folder / "spark"
    work.mkdir(parents=True, exist_ok=True)
    spark = open_session("query", "local[2]", work, "tidegate.consumer.reading.daemon", log=work / "log")
    try:
        rows = spark.readStream.format("tidegate").options(**options).load()
        writer = rows.writeStream.format("parquet").option("path", str(folder / "rows"))
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        trigger = {"availableNow": True} if "once" in sys.argv else {"processingTime": "100 milliseconds"}
        query = writer.trigger(**trigger).start()  # type: ignore[arg-type]
        print(json.dumps({"runs": True, "columns": rows.columns}), flush=True)
        query.awaitTermination()
    except Exception as error:
        print(json.dumps({"stopped": str(error)}), flush=True)
        return 1
    print(json.dumps({"ended": True}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
