import io
import json
import logging

from tidegate import log


def test_json_lines_hold_fields_and_no_secret() -> None:
    out = io.StringIO()
    log.setup(json_lines=True, stream=out)
    logger = logging.getLogger("tidegate.test")
    log.event(logger, logging.INFO, "sink opened", uri="kafka://user:pw1@h/t?sasl-password=pw2&x=1", rows=3)
    line = json.loads(out.getvalue())
    assert (line["message"], line["level"], line["rows"]) == ("sink opened", "info", 3)
    assert "pw" not in out.getvalue()
    assert line["uri"].endswith("&x=1")


def test_human_lines_show_fields_behind_the_message() -> None:
    out = io.StringIO()
    log.setup(stream=out)
    log.event(logging.getLogger("tidegate.test"), logging.WARNING, "puller ended", exit_code=-9)
    assert "WARNING puller ended  exit_code=-9" in out.getvalue()


def test_secrets_are_found_in_json_and_in_options() -> None:
    text = log.redact("""{"sasl_password": "abc"} --token=def secret_access_key: ghi mysql://root:jkl@db/""")
    assert not any(word in text for word in ("abc", "def", "ghi", "jkl"))
