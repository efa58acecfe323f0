import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codec.golden import lines
from tidegate.errors import Undecodable
from tidegate.tidb import ddl_job
from tidegate.tidb.ddl_job import JobState


def test_golden_jobs_say_what_ticdc_received() -> None:
    done: dict[int, ddl_job.DdlJob] = {}
    for record in lines("ddl/basic"):
        if record["kind"] == "ddl_job_row" and record.get("job_meta"):
            job = ddl_job.parse(record["job_meta"].encode(), record["start_ts"], record["commit_ts"])
            assert job.is_done == (job.state == JobState.DONE)
            if job.is_done:
                done[job.id] = job
        elif record["kind"] == "ddl_done":
            job = done[record["job_id"]]
            assert (job.finished_ts, job.start_ts) == (record["finished_ts"], record["start_ts"])
            assert (job.action, job.query, job.version) == (
                record["type"],
                record["query"],
                record["job_version"],
            )
            assert job.schema_version == record["schema_version"]
            assert job.schema_name == record["schema_name"].lower()


@pytest.mark.parametrize("data", [b"", b"1", b"[]", b"{}", b'{"id":1,"type":"x","state":4}', b"\xff"])
def test_what_is_no_job_is_undecodable(data: bytes) -> None:
    with pytest.raises(Undecodable):
        ddl_job.parse(data, 1, 2)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_job_or_undecodable(data: bytes) -> None:
    with pytest.raises(Undecodable):
        ddl_job.parse(data, 1, 2)
